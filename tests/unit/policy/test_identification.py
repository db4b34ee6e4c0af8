"""Identities of a contracted fleet: owed at a start, compared in sweeps and after a takeover."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from narwhal.model.effect import Effect, ProbeKind, ProbeWanted, Told
from narwhal.model.evidence import (
    Check,
    Identified,
    IdentityOutcome,
    LivenessSwept,
    ProbeOutcome,
    Validated,
)
from narwhal.model.maintenance import DrainOrder
from narwhal.policy.fleet import Fleet
from narwhal.policy.readmission import ORDER
from narwhal.policy.travel import Opening
from tests.support.settings import handoff_document
from tests.unit.policy.test_judgement import fleet_of

NOW = 100.0
CONTRACT = {"vllm_version": "0.32.0"}
LIKE, UNLIKE, SILENT = IdentityOutcome.LIKE, IdentityOutcome.UNLIKE, IdentityOutcome.SILENT
ROLES = {"p0": "prefill", "d0": "decode", "d1": "decode"}
ALL = ("d0", "d1", "p0")
WELL = tuple(Check(name, "passed") for name in ORDER)
STARTED = 1000.0
ANOTHER_D0 = "whole-wave restart required: d0 is not as it was accepted: its process is another one"


def contracted(**recovery: Any) -> Fleet:
    return fleet_of("p0 d0 d1", contract=CONTRACT, **recovery)


def accepted(**recovery: Any) -> Fleet:
    """Every engine is settled."""
    fleet = contracted(**recovery)
    for iid in ALL:
        like(fleet, iid)
    assert fleet.available(NOW) == ALL
    return fleet


def like(fleet: Fleet, iid: str, start: float = STARTED, *, now: float = NOW) -> tuple[Effect, ...]:
    return fleet.step(Identified(iid, LIKE, start), now)


def silent(
    fleet: Fleet,
    iid: str,
    why: str = "the sidecar answers 503",
    *,
    now: float = NOW,
    start: float | None = None,
) -> list[str]:
    return kinds(fleet.step(Identified(iid, SILENT, start, why), now))


def kinds(effects: tuple[Effect, ...]) -> list[str]:
    return [effect.kind for effect in effects if isinstance(effect, Told)]


def reasons(effects: tuple[Effect, ...], kind: str) -> list[str]:
    return [
        str(effect.fields["reason"]) for effect in effects if isinstance(effect, Told) and effect.kind == kind
    ]


def asked(effects: tuple[Effect, ...]) -> list[str]:
    wanted = [effect for effect in effects if isinstance(effect, ProbeWanted)]
    return [effect.iid for effect in wanted if effect.kind is ProbeKind.IDENTITY]


def readmissions(effects: tuple[Effect, ...]) -> list[str]:
    wanted = [effect for effect in effects if isinstance(effect, ProbeWanted)]
    return [effect.iid for effect in wanted if effect.kind is ProbeKind.READMISSION]


def starts(fleet: Fleet, now: float = NOW) -> dict[str, float]:
    told = fleet.export(now).lifecycle["process_starts"]
    assert isinstance(told, dict)
    return told


def handed_over(fleet: Fleet, opening: Opening, *, changes: Any = None, **recovery: Any) -> Fleet:
    """The successor of `fleet`, with its document; `changes` replace fields of its `lifecycle`."""
    state = fleet.export(NOW)
    document = replace(
        handoff_document(**ROLES),
        ejected=state.ejected,
        ejections=state.ejections,
        lifecycle={**state.lifecycle, **(changes or {})},
    )
    successor = contracted(**recovery)
    successor.restore(document, NOW, opening=opening)
    return successor


def plain_start(fleet: Fleet, policy: str = "individual", **recovery: Any) -> Fleet:
    opening = Opening(verify=True, compare=False)
    return handed_over(fleet, opening, engine_restart_policy=policy, **recovery)


# --- at a start --------------------------------------------------------------------------------------


def test_at_a_start_every_engine_is_asked_and_nobody_serves_before_all_are_settled() -> None:
    fleet = contracted()
    assert fleet.identification.awaiting
    assert asked(fleet.tick(NOW)) == list(ALL)
    assert fleet.identification.awaited() == dict.fromkeys(ALL, "it was not asked yet")
    for iid in ("d0", "d1"):
        assert like(fleet, iid) == ()
        assert fleet.available(NOW) == ()
    assert asked(fleet.tick(NOW + 1)) == ["p0"]
    like(fleet, "p0")
    assert (fleet.available(NOW), fleet.identification.awaiting) == (ALL, False)
    assert starts(fleet) == dict.fromkeys(ALL, STARTED)
    assert asked(fleet.tick(NOW + 2)) == []


def test_a_fleet_without_a_contract_owes_nothing() -> None:
    fleet = fleet_of("p0 d0 d1")
    assert fleet.available(NOW) == ALL
    assert not fleet.identification.awaiting
    assert asked(fleet.tick(NOW)) == []
    assert asked(fleet.step(LivenessSwept("d0", ProbeOutcome.GOOD), NOW)) == []
    assert like(fleet, "d0") == ()
    assert "awaiting_identity" not in fleet.export(NOW).lifecycle


def test_an_unlike_engine_is_ejected_with_the_field_and_the_others_serve() -> None:
    fleet = contracted()
    like(fleet, "p0")
    like(fleet, "d0")
    effects = fleet.step(Identified("d1", UNLIKE, STARTED, "kv_heads is 4, the contract wants 8"), NOW)
    assert kinds(effects) == ["identity_failed", "ejection"]
    assert reasons(effects, "ejection") == ["identity: kv_heads is 4, the contract wants 8"]
    assert fleet.available(NOW) == ("d0", "p0")
    assert not fleet.identification.awaiting


def test_a_sidecar_that_is_down_at_the_start_is_waited_for_and_told_once() -> None:
    fleet = contracted()
    for iid in ("p0", "d0"):
        like(fleet, iid)
    for second in range(50):
        assert asked(fleet.tick(NOW + second)) == ["d1"]
        assert silent(fleet, "d1", now=NOW + second) == ([] if second else ["identity_awaited"])
        assert fleet.available(NOW + second) == ()
    assert silent(fleet, "d1", "another reason") == ["identity_awaited"]
    like(fleet, "d1", now=NOW + 50)
    assert fleet.available(NOW + 50) == ALL


def test_a_minute_after_the_first_engine_the_others_serve_without_the_silent_one() -> None:
    fleet = contracted()
    silent(fleet, "d1", now=NOW)
    assert kinds(fleet.tick(NOW + 500)) == [], "nobody is settled: there is nothing to serve with"
    like(fleet, "p0", now=NOW + 500)
    like(fleet, "d0", now=NOW + 510)
    assert kinds(fleet.tick(NOW + 559)) == []
    effects = fleet.tick(NOW + 560)
    assert kinds(effects) == ["identity_failed", "ejection"]
    assert "the sidecar answers 503" in reasons(effects, "ejection")[0]
    assert fleet.available(NOW + 560) == ("d0", "p0")


def test_where_only_the_whole_fleet_restarts_a_silent_engine_is_waited_for_without_end() -> None:
    fleet = contracted(engine_restart_policy="whole_wave")
    like(fleet, "p0")
    like(fleet, "d0")
    assert kinds(fleet.tick(NOW + 3600)) == []
    assert fleet.identification.owing() == ("d1",)


def test_who_is_drained_or_out_meanwhile_is_not_waited_for() -> None:
    fleet = contracted(liveness_misses=1)
    like(fleet, "p0")
    fleet.upkeep.drain("d0", deadline_at=1e9)
    fleet.step(LivenessSwept("d1", ProbeOutcome.BAD, "refused"), NOW)
    fleet.tick(NOW)
    assert fleet.available(NOW) == ("p0",)


# --- while it serves ---------------------------------------------------------------------------------


def test_a_good_sweep_is_followed_by_a_look_at_the_identity() -> None:
    fleet = accepted()
    assert asked(fleet.step(LivenessSwept("d0", ProbeOutcome.GOOD), NOW)) == ["d0"]
    assert asked(fleet.step(LivenessSwept("d0", ProbeOutcome.BAD, "refused"), NOW)) == []
    assert like(fleet, "d0") == ()


def test_another_build_between_two_sweeps_is_found_and_ejected() -> None:
    fleet = accepted()
    why = "the engine runs vLLM 0.33.0, the contract wants 0.32.0"
    effects = fleet.step(Identified("d0", UNLIKE, STARTED + 60, why), NOW)
    assert reasons(effects, "ejection") == [f"identity: {why}"]
    assert fleet.available(NOW) == ("d1", "p0")


def test_an_individual_restart_of_the_same_build_is_accepted_and_told() -> None:
    fleet = accepted()
    assert kinds(like(fleet, "d0", STARTED + 60)) == ["peer_restarted", "process_accepted"]
    assert fleet.available(NOW) == ALL
    assert starts(fleet)["d0"] == STARTED + 60
    assert like(fleet, "d0", STARTED + 60) == ()


def test_with_whole_wave_no_engine_restarts_by_itself() -> None:
    fleet = accepted(engine_restart_policy="whole_wave")
    assert like(fleet, "d0", STARTED + 1e-7) == (), "the same start in another text"
    (reason,) = reasons(like(fleet, "d0", STARTED + 60), "identity_failed")
    assert reason.startswith("its process started at 1060.0, accepted is 1000.0")
    assert "d0" not in fleet.available(NOW)


def test_silence_counts_as_missed_sweeps_do() -> None:
    fleet = accepted(liveness_misses=3)
    assert silent(fleet, "d0") == silent(fleet, "d0") == []
    like(fleet, "d0")
    assert silent(fleet, "d0") == silent(fleet, "d0") == []
    assert fleet.available(NOW) == ALL
    assert silent(fleet, "d0") == ["identity_failed", "ejection"]


def test_a_sidecar_that_has_gone_ejects_its_engine_where_others_take_its_part() -> None:
    fleet = fleet_of("p0 d0 d1", pinned="p0 d0 d1", contract=CONTRACT, liveness_misses=1)
    for iid in ALL:
        like(fleet, iid)
    assert silent(fleet, "d0", start=STARTED) == ["identity_failed", "ejection"]
    (told,) = fleet.step(Identified("d1", SILENT, STARTED, "the sidecar answers 503"), NOW)
    assert isinstance(told, Told)
    assert (told.kind, told.enforced) == ("identity_failed", False)
    assert silent(fleet, "d1", start=STARTED) == [], "told once"
    assert fleet.available(NOW) == ("d1", "p0")
    like(fleet, "d1")
    assert silent(fleet, "d1", start=STARTED) == ["identity_failed"]
    assert silent(fleet, "d1") == ["identity_failed", "ejection"], "nobody knows what it is"


def test_with_whole_wave_a_sidecar_that_has_gone_holds_no_fleet() -> None:
    fleet = accepted(engine_restart_policy="whole_wave", liveness_misses=1)
    assert silent(fleet, "d0", start=STARTED) == ["identity_failed"]
    assert fleet.available(NOW) == ALL
    assert silent(fleet, "d0", start=STARTED + 60) == [
        "peer_restarted",
        "identity_failed",
        "ejection",
        "wave_required",
    ]


def test_a_silent_sidecar_of_another_process_than_the_owner_before_accepted_holds_the_fleet() -> None:
    successor = handed_over(accepted(), Opening())
    assert silent(successor, "d0", start=STARTED + 60) == ["identity_failed", "wave_required"]


def test_our_own_doing_and_unknown_engines_say_nothing() -> None:
    fleet = accepted(liveness_misses=1)
    for evidence in (
        Identified("d0", IdentityOutcome.INCONCLUSIVE, detail="our pool"),
        Identified("d9", UNLIKE, 1.0, "what is this"),
        Identified("d0", LIKE, None),
    ):
        assert fleet.step(evidence, NOW) == ()
    assert fleet.available(NOW) == ALL


# --- readmission -------------------------------------------------------------------------------------


def test_a_readmission_accepts_the_process_that_passed() -> None:
    fleet = accepted()
    fleet.step(Identified("d0", UNLIKE, STARTED + 60, "kv_heads is 4, the contract wants 8"), NOW)
    failed = (*WELL[:1], Check("attestation", "failed", "kv_heads"))
    fleet.step(Validated("d0", failed, process_start=STARTED + 60), NOW)
    fleet.step(Validated("d0", WELL[:2], conclusive=False, process_start=STARTED + 60), NOW)
    assert starts(fleet)["d0"] == STARTED
    fleet.step(Validated("d0", WELL, process_start=STARTED + 90), NOW)
    assert fleet.available(NOW) == ALL
    assert starts(fleet)["d0"] == STARTED + 90


def test_what_was_asked_before_a_readmission_tells_of_a_process_that_is_gone() -> None:
    fleet = accepted()
    (probe,) = fleet.step(LivenessSwept("d0", ProbeOutcome.GOOD), NOW)
    assert isinstance(probe, ProbeWanted)
    fleet.step(Identified("d0", UNLIKE, STARTED, "x"), NOW)
    fleet.step(Validated("d0", WELL, process_start=STARTED + 90), NOW)
    late = Identified("d0", LIKE, STARTED, number=probe.number)
    assert fleet.step(late, NOW) == ()
    assert fleet.available(NOW) == ALL
    (again,) = fleet.step(LivenessSwept("d0", ProbeOutcome.GOOD), NOW)
    assert isinstance(again, ProbeWanted)
    assert kinds(fleet.step(replace(late, number=again.number), NOW)) == ["process_accepted"]


# --- takeover and resume -----------------------------------------------------------------------------


def test_a_takeover_goes_on_with_what_was_accepted_and_compares_it_beside() -> None:
    successor = handed_over(accepted(), Opening())
    assert successor.available(NOW) == ALL
    assert starts(successor) == dict.fromkeys(ALL, STARTED)
    assert asked(successor.tick(NOW)) == list(ALL)
    assert asked(successor.tick(NOW + 1)) == []
    assert like(successor, "d0") == ()
    assert successor.available(NOW) == ALL


@pytest.mark.parametrize("opening", [Opening(cautious=True), Opening(verify=True)])
def test_an_old_document_and_a_resume_owe_every_identity_anew(opening: Opening) -> None:
    successor = handed_over(accepted(), opening)
    assert successor.available(NOW) == ()
    assert asked(successor.tick(NOW)) == list(ALL)
    for iid in ALL:
        successor.standings.verified(iid)
        assert successor.available(NOW) == ()
        like(successor, iid)
    assert successor.available(NOW) == ALL


def test_who_was_accepted_before_and_is_silent_now_is_out_after_its_misses() -> None:
    successor = handed_over(accepted(), Opening(verify=True), liveness_misses=2)
    like(successor, "d0")
    like(successor, "p0")
    assert silent(successor, "d1") == []
    assert silent(successor, "d1") == ["identity_failed", "ejection"]
    assert successor.available(NOW) == ("d0", "p0")


def test_with_whole_wave_a_resume_waits_for_a_sidecar_and_holds_nobody() -> None:
    before = accepted(engine_restart_policy="whole_wave")
    successor = handed_over(before, Opening(verify=True), engine_restart_policy="whole_wave")
    like(successor, "d0")
    like(successor, "p0")
    assert silent(successor, "d1", start=STARTED) == ["identity_awaited"]
    assert silent(successor, "d1") == silent(successor, "d1", start=STARTED) == []
    assert (successor.identification.owing(), successor.upkeep.wave.reason) == (("d1",), "")
    like(successor, "d1")
    assert successor.available(NOW) == ALL


def test_what_its_owner_had_not_settled_is_owed_by_the_successor_too() -> None:
    fleet = contracted()
    like(fleet, "d0")
    like(fleet, "p0")
    assert fleet.export(NOW).lifecycle["awaiting_identity"] == ["d1"]
    successor = handed_over(fleet, Opening())
    assert successor.identification.owing() == ("d1",)
    assert successor.available(NOW) == ()
    assert kinds(successor.tick(NOW + 60)) == ["identity_failed", "ejection"], "the others have waited enough"
    assert successor.available(NOW + 60) == ("d0", "p0")


@pytest.mark.parametrize("policy", ["individual", "whole_wave"])
def test_a_plain_start_accepts_anew_what_the_contract_wants(policy: str) -> None:
    successor = plain_start(accepted(engine_restart_policy=policy), policy)
    for iid in ALL:
        assert kinds(like(successor, iid, STARTED + 60)) == ["process_accepted"]
    assert successor.available(NOW) == ALL
    assert starts(successor) == dict.fromkeys(ALL, STARTED + 60)


def test_accepted_processes_outlive_plain_starts_and_count_again_when_they_are_seen() -> None:
    twice = plain_start(plain_start(accepted()))
    assert starts(twice) == dict.fromkeys(ALL, STARTED)
    assert twice.identification.owing() == ALL
    for iid in ALL:
        assert like(twice, iid) == ()
    assert starts(twice) == dict.fromkeys(ALL, STARTED)
    assert "uncompared_starts" not in twice.export(NOW).lifecycle
    assert kinds(like(handed_over(twice, Opening()), "d0", STARTED + 60))[-1] == "wave_required"


def test_a_process_from_before_a_plain_start_ejects_nobody_and_holds_no_fleet() -> None:
    plain = plain_start(accepted(), liveness_misses=1)
    like(plain, "p0")
    assert silent(plain, "d0") == ["identity_awaited"], "as of one that was never accepted"
    assert plain.export(NOW).lifecycle["uncompared_starts"] == ["d0", "d1"]
    successor = handed_over(plain, Opening(), liveness_misses=1)
    assert successor.identification.owing() == ("d0", "d1")
    assert silent(successor, "d0") == ["identity_awaited"]
    assert kinds(like(successor, "d1", STARTED + 60)) == ["process_accepted"]
    assert successor.upkeep.wave.reason == ""
    assert kinds(like(successor, "p0", STARTED + 60))[-1] == "wave_required", "it was seen after the start"


@pytest.mark.parametrize("told", [None, 3, "d0", [3, ["d0"], None], {"d0": 1}])
def test_a_list_of_uncompared_starts_that_cannot_be_read_names_nobody(told: object) -> None:
    successor = handed_over(accepted(), Opening(), changes={"uncompared_starts": told})
    assert successor.available(NOW) == ALL


def test_who_is_out_in_the_document_owes_nothing_but_its_checks() -> None:
    fleet = accepted()
    fleet.step(Identified("d1", UNLIKE, STARTED, "x"), NOW)
    successor = handed_over(fleet, Opening(verify=True))
    assert successor.identification.owing() == ("d0", "p0")
    assert readmissions(successor.tick(NOW)) == [], "nobody could prove a transfer with it"
    like(successor, "d0")
    like(successor, "p0")
    assert readmissions(successor.tick(NOW + 1)) == ["d1"]


@pytest.mark.parametrize("told", [None, [], {"d0": "soon", "d1": True, "p0": float("nan"), "x": 1.0}])
def test_starts_that_cannot_be_read_are_none(told: object) -> None:
    successor = handed_over(accepted(), Opening(), changes={"process_starts": told})
    assert starts(successor) == {}
    assert "no accepted process of d0, d1, p0" in successor.upkeep.wave.reason
    assert successor.available(NOW) == ()


@pytest.mark.parametrize("policy", ["individual", "whole_wave"])
@pytest.mark.parametrize("opening", [Opening(), Opening(verify=True), Opening(cautious=True)])
def test_another_process_than_the_owner_before_accepted_holds_the_whole_fleet(
    opening: Opening, policy: str
) -> None:
    before = accepted(engine_restart_policy=policy)
    successor = handed_over(before, opening, engine_restart_policy=policy)
    like(successor, "p0")
    assert kinds(like(successor, "d0", STARTED + 60)) == ["identity_failed", "wave_required"]
    successor.tick(NOW)
    assert (successor.available(NOW), successor.identification.awaiting) == ((), False)
    assert successor.upkeep.wave.reason == ANOTHER_D0
    assert starts(successor)["d0"] == STARTED


def test_another_build_in_another_process_holds_it_too_and_in_the_same_process_ejects() -> None:
    successor = handed_over(accepted(), Opening())
    effects = successor.step(Identified("d0", UNLIKE, STARTED, "kv_heads is 4, the contract wants 8"), NOW)
    assert kinds(effects) == ["identity_failed", "ejection"]
    effects = successor.step(
        Identified("d1", UNLIKE, STARTED + 9, "kv_heads is 4, the contract wants 8"), NOW
    )
    assert kinds(effects) == ["identity_failed", "wave_required"]
    assert "kv_heads is 4, the contract wants 8" in reasons(effects, "identity_failed")[0]


@pytest.mark.parametrize("outcome", [SILENT, UNLIKE])
def test_clients_are_told_which_engine_holds_the_fleet_and_only_the_journal_what_it_showed(
    outcome: IdentityOutcome,
) -> None:
    successor = handed_over(accepted(), Opening())
    detail = "the sidecar gives no answer (connect http://10.1.2.3:8010: [Errno 111] Connection refused)"
    effects = successor.step(Identified("d0", outcome, STARTED + 60, detail), NOW)
    assert reasons(effects, "identity_failed") == [
        f"its process started at 1060.0, accepted is 1000.0; {detail}"
    ]
    assert successor.upkeep.wave.reason == ANOTHER_D0
    assert successor.upkeep.view().reason == ANOTHER_D0
    assert "10.1.2.3" not in successor.upkeep.orders.refuses_drain(DrainOrder(("d1",)), NOW)


def test_a_process_that_an_operator_brought_back_meanwhile_is_this_owners_own() -> None:
    successor = handed_over(accepted(), Opening())
    successor.upkeep.drain("d0", deadline_at=1e9)
    successor.upkeep.drains.begin("d0")
    successor.upkeep.validated(Validated("d0", WELL), process_start=STARTED + 60, now=NOW)
    assert kinds(like(successor, "d0", STARTED + 90)) == ["process_accepted"]
    assert successor.upkeep.wave.reason == ""


def test_a_saved_state_that_does_not_fit_holds_the_fleet_at_a_resume_and_not_at_a_plain_start() -> None:
    changes = {"process_starts": {"d0": STARTED, "p0": STARTED}, "awaiting_identity": []}
    before = accepted()
    resumed = handed_over(before, Opening(verify=True), changes=changes)
    reason = "whole-wave restart required: the saved state has no accepted process of d1"
    assert resumed.upkeep.wave.reason == reason
    assert resumed.available(NOW) == ()
    assert kinds(resumed.tick(NOW)) == ["wave_required"], "told once there is somebody to tell"
    assert kinds(resumed.tick(NOW + 1)) == []
    plain = handed_over(before, Opening(verify=True, compare=False), changes=changes)
    assert plain.upkeep.wave.reason == ""


def test_every_reason_why_a_restored_fleet_is_held_is_told() -> None:
    before = accepted()
    before.step(Identified("d1", UNLIKE, STARTED, "kv_heads is 4"), NOW)
    policy = "engine_restart_policy was changed from 'individual' to whole_wave"
    for opening, why in (
        (Opening(), f"{policy}; d1 was ejected"),
        (Opening(verify=True, compare=False), "d1 was ejected"),
    ):
        held = f"{why}: the whole fleet is held until an operator completes a wave"
        successor = contracted(engine_restart_policy="whole_wave")
        state = before.export(NOW)
        document = replace(handoff_document(**ROLES), ejected=state.ejected, lifecycle=state.lifecycle)
        assert successor.restore(document, NOW, opening=opening) == (held,)
        assert successor.upkeep.wave.reason == f"whole-wave restart required: {why}"
        assert reasons(successor.tick(NOW), "wave_required") == [held]
        assert kinds(successor.tick(NOW)) == []
        again = handed_over(successor, Opening(), engine_restart_policy="whole_wave")
        assert reasons(again.tick(NOW), "wave_required") == [], "the owner before has told it"


@pytest.mark.parametrize("contract", [None, CONTRACT])
def test_a_wave_that_could_not_be_read_is_told_as_one_that_is_required(contract: Any) -> None:
    fleet = fleet_of("p0 d0 d1", contract=contract)
    document = handoff_document(**ROLES)
    starts = {"process_starts": dict.fromkeys(ALL, STARTED)}
    fleet.restore(replace(document, lifecycle={**starts, "wave": {"state": "new word"}}), NOW)
    (reason,) = reasons(fleet.tick(NOW), "wave_required")
    assert reason.startswith("the wave of another owner could not be read: the whole fleet is held")
    assert fleet.available(NOW) == ()


def test_a_fleet_without_a_contract_goes_on_with_any_saved_state() -> None:
    fleet = fleet_of("p0 d0 d1")
    fleet.restore(replace(handoff_document(p0="prefill", x="decode"), model="another"), NOW)
    assert fleet.available(NOW) == ALL


def test_what_was_asked_before_an_operators_readmission_is_stale_too() -> None:
    fleet = accepted(engine_restart_policy="individual")
    (probe,) = fleet.step(LivenessSwept("d0", ProbeOutcome.GOOD), NOW)
    assert isinstance(probe, ProbeWanted)
    fleet.upkeep.drain("d0", deadline_at=1e9)
    fleet.upkeep.drains.begin("d0")
    fleet.upkeep.validated(Validated("d0", WELL), process_start=STARTED + 90, now=NOW)
    assert fleet.step(Identified("d0", LIKE, STARTED, number=probe.number), NOW) == ()
    assert starts(fleet)["d0"] == STARTED + 90
