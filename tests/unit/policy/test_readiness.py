from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from narwhal.model.control import ControlStatus, HealthStatus, OwnerRef, RouterRole, RouterState, StoreStatus
from narwhal.policy.readiness import ReadinessFacts, judge, judge_health

OWNER = OwnerRef("a:1", "http://a:1")
OWNING = ControlStatus(RouterState.OWNER, epoch=7, holder="a:1:00ff", may_admit=True, owner=OWNER)
STANDING_BY = replace(OWNING, state=RouterState.STANDBY, may_admit=False)
NO_STORE = StoreStatus(mode="standalone", reachable=False, failures=3)
READY = ReadinessFacts(control=OWNING, monitoring="", serves_prefill=True, serves_decode=True)

# Everything wrong at once, and what each cure uncovers: the precedence table of http-api.md section 3.
EVERYTHING_WRONG = ReadinessFacts(
    control=replace(
        OWNING,
        state=RouterState.FENCED,
        may_admit=False,
        fenced_why="lost to b:1",
        shutting_down=True,
        store=NO_STORE,
    ),
    monitoring="monitoring degraded: handoff OSError",
    wave="whole-wave drain w1",
    awaiting_identity=True,
    serves_prefill=False,
    serves_decode=False,
)


def cures() -> list[tuple[ReadinessFacts, str, bool]]:
    facts = EVERYTHING_WRONG
    rows = [(facts, "shutting down", False)]
    facts = replace(facts, control=replace(facts.control, shutting_down=False))
    rows.append((facts, "fenced: lost to b:1", False))
    facts = replace(facts, control=replace(facts.control, state=RouterState.STANDBY))
    rows.append((facts, "lease store unavailable", False))
    facts = replace(facts, control=replace(facts.control, store=StoreStatus(mode="standalone")))
    rows.append((facts, "standby", False))
    facts = replace(facts, control=OWNING)
    rows.append((facts, "monitoring degraded: handoff OSError", False))
    facts = replace(facts, monitoring="")
    rows.append((facts, "whole-wave drain w1", True))
    facts = replace(facts, wave="")
    rows.append((facts, "awaiting engine identity", True))
    facts = replace(facts, awaiting_identity=False)
    rows.append((facts, "no available engines", True))
    facts = replace(facts, serves_prefill=True)
    rows.append((facts, "no available engines", True))
    facts = replace(facts, serves_decode=True)
    rows.append((facts, "", True))
    return rows


@pytest.mark.parametrize(("facts", "reason", "control_ready"), cures())
def test_reasons_follow_the_precedence_table(facts: ReadinessFacts, reason: str, control_ready: bool) -> None:
    readiness = judge(facts)
    assert (readiness.reason, readiness.control_ready) == (reason, control_ready)
    assert readiness.ready is (reason == "")


@pytest.mark.parametrize(
    ("state", "role"),
    [
        (RouterState.STARTING, RouterRole.STANDBY),
        (RouterState.STANDBY, RouterRole.STANDBY),
        (RouterState.CANDIDATE, RouterRole.STANDBY),
        (RouterState.ACQUIRING, RouterRole.STANDBY),
        (RouterState.RESTORING, RouterRole.STANDBY),
        (RouterState.RELEASED, RouterRole.STANDBY),
        (RouterState.STOPPED, RouterRole.STANDBY),
        (RouterState.OWNER, RouterRole.ACTIVE),
        (RouterState.SUSPECT, RouterRole.ACTIVE),
        (RouterState.DRAINING, RouterRole.ACTIVE),
        (RouterState.FENCED, RouterRole.FENCED),
    ],
)
def test_each_state_has_one_role(state: RouterState, role: RouterRole) -> None:
    assert judge(replace(READY, control=replace(OWNING, state=state))).role is role


def test_an_owner_that_hands_the_lease_over_is_not_ready() -> None:
    readiness = judge(replace(READY, control=replace(OWNING, may_admit=False)))
    assert (readiness.ready, readiness.reason, readiness.control_ready) == (False, "standby", False)


def test_an_owner_with_a_valid_lease_stays_ready_while_the_store_is_away() -> None:
    assert judge(replace(READY, control=replace(OWNING, store=NO_STORE))).ready


def test_a_standby_tells_whether_it_could_take_over_and_an_owner_does_not() -> None:
    told = judge(replace(READY, control=replace(STANDING_BY, ready_to_take=True, drift=("old mirror",))))
    assert (told.ready_to_take, told.drift) == (True, ("old mirror",))
    owner = judge(replace(READY, control=replace(OWNING, ready_to_take=True, drift=("old mirror",))))
    assert (owner.ready_to_take, owner.drift) == (False, ())


def test_the_answer_names_the_lease_as_the_gate_does() -> None:
    readiness = judge(READY)
    assert (readiness.epoch, readiness.holder, readiness.owner) == (7, "a:1:00ff", OWNER)


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        (READY, HealthStatus.OK),
        (replace(READY, control=STANDING_BY), HealthStatus.STANDBY),
        (replace(READY, control=replace(OWNING, state=RouterState.FENCED)), HealthStatus.FENCED),
        (replace(READY, wave="whole-wave drain w1"), HealthStatus.MAINTENANCE),
        (replace(READY, monitoring="monitoring degraded: handoff OSError"), HealthStatus.DEGRADED),
        (replace(READY, serves_decode=False), HealthStatus.DEGRADED),
        (replace(READY, monitoring="m", control=STANDING_BY), HealthStatus.STANDBY),
    ],
)
def test_health_says_who_we_are_before_how_we_are(facts: ReadinessFacts, status: HealthStatus) -> None:
    health = judge_health(facts, instances=4, available=3)
    assert (health.status, health.instances, health.available_instances) == (status, 4, 3)


def test_each_reason_has_its_runbook() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text(encoding="utf-8")
    section = guide.split("## Runbooks: `reason`")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|.+\|.+\|$", section, re.MULTILINE)
    told = [re.sub(r"<\w+>|\.\.\.", "#", row.strip("`")) for row in rows]
    shapes = [re.escape(one).replace("\\#", ".+") for one in told]
    waves = ["whole-wave drain w1", "whole-wave recovery w1", "whole-wave restart required: e0 was ejected"]
    reasons = [*waves, *(reason for _, reason, _ in cures() if reason)]
    assert [one for one in reasons if not any(re.fullmatch(shape, one) for shape in shapes)] == []
    assert [shape for shape in shapes if not any(re.fullmatch(shape, one) for one in reasons)] == []
