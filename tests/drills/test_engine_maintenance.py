"""Drills with real processes: engines drained, restarted and readmitted by an operator's commands.

Engines and their sidecars are really stopped and started. One site serves all drills: each leaves every
engine in service.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.support.bookkeepers import crowd
from tests.support.engine_hosts import start_all
from tests.support.maintenance_stage import Site, site
from tests.support.processes import eventually

CHECKS = ["health", "attestation", "model", "process", "generation", "kv_transfer", "final_health"]
TRANSFERS = {"leg": "probe", "match": "kv_transfer_params"}
ONE_LONG = {"seconds": 40.0, "count": 1, **TRANSFERS}
"""A validation that meets it is under way for longer than anything here takes, the next one is not."""
CUT = re.compile("RemoteDisconnected|IncompleteRead|reset")
"""What a client sees whose router is killed."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("maintenance")) as found:
        yield found


def drained(stage: Site) -> None:
    done = stage.narwhal("drain", "e2", "--wait")
    assert (done.status, done.output.splitlines()[-1]) == (0, "e2 may be stopped now"), done.output


def readmitted(stage: Site) -> None:
    done = stage.narwhal("readmit", "e2", "--wait")
    assert (done.status, done.output.splitlines()[-1]) == (
        0,
        "e2 is in service again: e2 passed 7 checks",
    ), done.output
    assert stage.row("e2")["accepts_new"] is True


def blocked_by(stage: Site, check: str) -> None:
    """A readmission ends there, every check before it is passed, and the command says so."""
    done = stage.narwhal("readmit", "e2")
    assert done.status == 1
    assert f"narwhal readmit: e2 stays out: the check {check} failed (" in done.output
    row = stage.row("e2")
    assert (row["state"], row["draining"], row["accepts_new"]) == ("blocked", True, False)
    assert row["error"] in done.output
    names = CHECKS[: CHECKS.index(check) + 1]
    outcomes = ["passed"] * (len(names) - 1) + ["failed"]
    assert [(one["name"], one["outcome"]) for one in row["checks"]] == list(zip(names, outcomes, strict=True))


def test_an_engine_is_restarted_step_by_step_and_no_request_notices(stage: Site) -> None:
    host = stage.hosts["e2"]
    with crowd(stage.urls()) as clients:
        eventually(lambda: stage.placed("e2") > 0, what="it serves")
        drained(stage)
        before = stage.row("e2")
        host.engine.reset()
        time.sleep(1.0)
        assert stage.placed("e2") == 0, "nothing is placed on a drained engine"
        host.restart()
        assert stage.placed("e2") == 0
        readmitted(stage)
        eventually(lambda: stage.placed("e2") > 0, what="it serves again")
    assert (clients.failed, clients.served() > 0) == ([], True)
    row = stage.row("e2")
    assert row["old_process_start"] == before["old_process_start"] < row["new_process_start"]
    assert stage.lifecycle()["process_starts"]["e2"] == row["new_process_start"]


def test_each_check_that_fails_blocks_the_engine_until_its_cause_is_mended(stage: Site) -> None:
    """An operator's bad day: each step mends one thing and meets the next. Clients notice nothing."""
    host = stage.hosts["e2"]
    with crowd(stage.urls()) as clients:
        drained(stage)
        blocked_by(stage, "process")  # it was not restarted
        host.stop()
        blocked_by(stage, "health")  # nobody started it
        host.begin_engine()
        host.engine_is_up()
        blocked_by(stage, "attestation")  # nobody started its sidecar
        host.begin_sidecar(kv_heads=4)
        host.sidecar_is_up()
        blocked_by(stage, "attestation")  # it is not what the contract says
        assert "kv_heads" in stage.row("e2")["error"]
        host.restart("--model", "another")
        blocked_by(stage, "model")
        host.restart()
        host.engine.order("status", status=500, leg="probe")
        blocked_by(stage, "generation")
        host.engine.clear()
        for peer in ("e0", "e1"):
            host.engine.order("edge", port=stage.hosts[peer].side_port)
        blocked_by(stage, "kv_transfer")
        host.engine.reset()
        host.engine.order("slow", seconds=3.0, **TRANSFERS)
        trying = stage.begin("readmit", "e2")
        eventually(lambda: stage.transfers("e2") > 0, what="the transfer is on")
        host.engine.order("status", status=503, leg="health")
        assert trying.ended() == 1
        assert "the check final_health failed" in trying.output
        assert [one["name"] for one in stage.row("e2")["checks"]] == CHECKS
        assert stage.placed("e2") == 0
        host.engine.clear()
        readmitted(stage)
    assert clients.failed == []


def test_a_drain_and_whoever_waits_outlive_one_owner_after_the_other(stage: Site) -> None:
    """kill -9, then a yield back: the same record, and nothing is placed. Then a kill under a readmission."""
    host = stage.hosts["e2"]
    with crowd(stage.urls()) as clients:
        assert stage.narwhal("drain", "e2", router=stage.standby).status == 0, "the owner is followed"
        before = stage.row("e2")
        host.engine.reset()
        for take_over in (stage.kill_owner, stage.yield_owner):
            owner = take_over()
            row = stage.row("e2", owner)
            assert (row["draining"], row["accepts_new"]) == (True, False)
            for name in ("old_process_start", "deadline_at"):
                assert row[name] == before[name] is not None
            time.sleep(0.5)
            assert stage.placed("e2") == 0
            stage.two_routers()
        drained(stage)
        host.restart()
        host.engine.order("slow", **ONE_LONG)
        waiting = stage.begin("readmit", "e2", "--wait")
        validating(stage)
        owner = stage.kill_owner()
        host.engine.clear()
        assert waiting.ended() == 0, waiting.output
        assert waiting.lines[-1] == "e2 is in service again: e2 passed 7 checks"
        assert stage.row("e2", owner)["accepts_new"] is True
        stage.two_routers()
    assert [words for words in clients.failed if not CUT.search(words)] == []


def validating(stage: Site) -> None:
    """A standby has it too: whoever takes over now finds a validation that was cut off."""
    standby = stage.standby
    eventually(lambda: stage.row("e2", standby)["state"] == "validating", what="the standby knows")


@pytest.mark.parametrize("way", ["kill", "yield"])
def test_a_takeover_in_the_middle_of_a_validation_blocks_the_engine(stage: Site, way: str) -> None:
    host = stage.hosts["e2"]
    drained(stage)
    host.restart()
    host.engine.order("slow", **ONE_LONG)
    with crowd(stage.urls()):
        trying = stage.begin("readmit", "e2")
        validating(stage)
        trying.kill()  # whoever asks the former owner is sent on to the new one, which would begin anew
        owner = stage.kill_owner() if way == "kill" else stage.yield_owner()
        row = stage.row("e2", owner)
        assert (row["state"], row["accepts_new"]) == ("blocked", False)
        assert row["error"].startswith("validation interrupted")
        eventually(lambda: host.engine.stats()["aborted"] > 0, what="the former owner leaves the engine")
        time.sleep(0.5)
        assert (stage.row("e2", owner)["state"], stage.placed("e2")) == ("blocked", 0)
        host.engine.clear()
        readmitted(stage)
        stage.two_routers()


def test_the_whole_fleet_is_restarted_as_a_wave_through_two_takeovers_and_a_check_that_fails(
    stage: Site,
) -> None:
    """All or nothing: until every member has passed, no client's request reaches any engine."""
    hosts = stage.hosts
    with crowd(stage.urls()) as clients:
        done = stage.narwhal("drain", "--wave", "--deadline", "60", "--wait")
        assert (done.status, done.output.splitlines()[-1]) == (0, "the whole fleet may be stopped now"), (
            done.output
        )
        before = stage.lifecycle()
        wave_id = before["wave"]["id"]
        owner = stage.yield_owner()
        assert withdrawn(stage, owner) == f"whole-wave drain {wave_id}"
        after = stage.lifecycle(owner)
        for iid, row in after["engines"].items():
            assert row["wave_id"] == wave_id
            assert row["old_process_start"] == before["engines"][iid]["old_process_start"] is not None
        for host in hosts.values():
            host.stop()
        start_all(list(hosts.values()))
        hosts["e1"].stop_sidecar()
        refused = stage.narwhal("readmit", "--wave")
        assert refused.status == 1
        assert "e1" in refused.output and "the check attestation failed" in refused.output
        assert not any(row["accepts_new"] for row in stage.lifecycle()["engines"].values())
        hosts["e1"].begin_sidecar()
        hosts["e1"].sidecar_is_up()
        hosts["e2"].engine.order("slow", **ONE_LONG)
        stage.two_routers()
        trying = stage.begin("readmit", "--wave", "--wait")
        validating(stage)
        owner = stage.kill_owner()
        assert withdrawn(stage, owner) == f"whole-wave recovery {wave_id}"
        assert [stage.placed(iid) for iid in hosts] == [0, 0, 0]
        served = clients.served()
        hosts["e2"].engine.clear()
        assert trying.ended() == 0, trying.output
        assert trying.lines[-1].startswith("the whole fleet is in service again: e0 passed 7 checks; e1")
        eventually(lambda: clients.served() > served, what="clients are served again")
    rows = stage.lifecycle()["engines"]
    assert all(row["new_process_start"] > row["old_process_start"] for row in rows.values())
    assert [words for words in clients.failed if not CUT.search(words)] == []


def withdrawn(stage: Site, name: str) -> str:
    """Why a router that controls the fleet is not ready."""
    told = stage.routers[name].get("/ready")
    assert (told["status"], told["control_ready"]) == ("not_ready", True)
    return str(told["reason"])
