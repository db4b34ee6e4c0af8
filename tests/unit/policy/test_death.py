"""policy/death.py: what proves that a process has ended, and what does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from narwhal.model.process import ProcessMark
from narwhal.policy.death import ProcessSight, Signalled, blind, proves_death

OURS = ProcessMark("host-1", "machine", "boot", "pid:[1]", pid=500, pid_start="900")
THEIRS = replace(OURS, pid=400, pid_start="700")
GONE = ProcessSight(Signalled.NO_SUCH_PROCESS)


def proved(theirs: ProcessMark = THEIRS, ours: ProcessMark = OURS, sight: ProcessSight = GONE) -> bool:
    asked: list[int] = []

    def look(pid: int) -> ProcessSight:
        asked.append(pid)
        return sight

    proof = proves_death(theirs, ours, look=look)
    assert (set(asked) <= {theirs.pid} and theirs.pid > 0) or not asked
    return proof


def test_no_such_process_is_death() -> None:
    assert proved()


def test_another_start_time_is_death() -> None:
    assert proved(sight=ProcessSight(Signalled.REACHED, "S", "701"))


@pytest.mark.parametrize(
    "sight",
    [
        pytest.param(ProcessSight(Signalled.REACHED, "S", "700"), id="it lives"),
        pytest.param(ProcessSight(Signalled.FORBIDDEN, "S", "701"), id="EPERM"),
        pytest.param(ProcessSight(Signalled.FORBIDDEN), id="EPERM, nothing readable"),
        pytest.param(ProcessSight(Signalled.REACHED), id="unreadable /proc"),
        pytest.param(ProcessSight(Signalled.REACHED, "S", ""), id="no start time read"),
        pytest.param(ProcessSight(Signalled.REACHED, "Z", "701"), id="state Z, another start time"),
        pytest.param(ProcessSight(Signalled.REACHED, "Z", "700"), id="state Z"),
    ],
)
def test_what_proves_nothing(sight: ProcessSight) -> None:
    assert not proved(sight=sight)


def test_a_record_without_a_start_time_proves_nothing_by_one() -> None:
    theirs = replace(THEIRS, pid_start="")
    assert not proved(theirs, sight=ProcessSight(Signalled.REACHED, "S", "701"))
    assert proved(theirs)


@pytest.mark.parametrize("fact", ["host", "machine_id", "boot_id", "pidns"])
def test_every_fact_of_the_place_must_be_known_and_equal(fact: str) -> None:
    assert not proved(replace(THEIRS, **{fact: "other"}))
    assert not proved(replace(THEIRS, **{fact: ""}))
    assert not proved(ours=replace(OURS, **{fact: ""}))
    assert not proved(replace(THEIRS, **{fact: ""}), replace(OURS, **{fact: ""}))


@pytest.mark.parametrize("pid", [0, -1])
def test_a_pid_that_would_name_a_group_is_never_asked_for(pid: int) -> None:
    assert not proved(replace(THEIRS, pid=pid))


def test_a_record_is_read_as_far_as_it_goes() -> None:
    fields = {"host": "h", "machine_id": "m", "boot_id": "b", "pidns": "n", "pid": "12", "pid_start": "9"}
    assert ProcessMark.of_record(fields) == ProcessMark("h", "m", "b", "n", 12, "9")
    assert ProcessMark.of_record(fields).record() == fields
    assert ProcessMark.of_record({}) == ProcessMark()
    assert [ProcessMark.of_record({"pid": text}).pid for text in ("", "-5", "x", "²", "1.5")] == [0] * 5


def test_who_sees_nothing_proves_nothing() -> None:
    assert not proves_death(THEIRS, OURS, look=blind)
