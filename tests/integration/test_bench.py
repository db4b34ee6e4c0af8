"""The benchmark measures what it says: programs build, frames are counted, a lost one is noticed."""

from __future__ import annotations

import pytest

from tests.bench.contenders import Pace, byte_relay, rig
from tests.bench.load import Load, LostFrames, Spread, cost_of_window, run
from tests.bench.processes import build, resident_bytes
from tests.bench.results import Figure, Section, Verdict, command_line, tables
from tests.support.services import program


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    program("cc", package="gcc")
    build()


def test_a_window_of_load_counts_every_frame_and_its_cost() -> None:
    with rig(byte_relay(), Pace(interval_s=0.01)) as up:
        cost = cost_of_window(up, Load(rate=20, duration_s=1, tokens=20), after_s=0.3, window_s=0.4)
        assert cost.report["frames"] == cost.report["started"] * 20
        assert 0 < cost.frames < cost.report["frames"]
        assert cost.cpu_s > 0
        assert resident_bytes(up.pid) > 0


def test_a_run_with_another_number_of_frames_than_asked_is_thrown_out() -> None:
    """The engines take `max_tokens: 0` for 1, so that each stream has a frame too many."""
    with rig(byte_relay(), Pace()) as up, pytest.raises(LostFrames, match='"completed": 0'):
        run(up, Load(rate=10, duration_s=0.5, tokens=0))


def test_verdicts_stand_at_aim_must_or_missed() -> None:
    words = [Verdict("x", value, 2.0, 1.0).word for value in (1.0, 2.0, 2.1)]
    assert words == ["aim", "must", "MISSED"]
    section = Section(
        "frame", [Figure("cost", "me", "µs", Spread.of([3, 1, 2]))], [Verdict("x", 2.1, 2.0, 1.0)]
    )
    assert "| x | 2.1 | ≤ 2 | ≤ 1 | MISSED |" in tables([section])
    assert "| frame | cost | me | 2 (1 to 3) µs |" in tables([section])


def test_the_command_of_the_document_names_no_place_on_the_machine() -> None:
    assert (
        command_line(["frame", "--json", "/somewhere/r.json", "--doc"]) == "python -m tests.bench frame --doc"
    )
