"""Whom evidence is held against: the request, the pair, the producer, the set-up, nobody, or the engine."""

from __future__ import annotations

from typing import Any

import pytest

from narwhal.model.effect import Effect, ProbeKind, ProbeWanted, RequestSuspected, Told
from narwhal.model.engine import Leg
from narwhal.model.evidence import (
    Check,
    EdgeProbed,
    Evidence,
    FailureClass,
    InferenceProbed,
    LegAnswered,
    LegFailed,
    LegSucceeded,
    LivenessSwept,
    ProbeOutcome,
    ProcessSeen,
    Validated,
)
from narwhal.policy.blame import LOOK_AGAIN_S, Blame
from narwhal.policy.judgement import Judgement
from tests.support.settings import recovery_settings

NOW = 100.0
ENGINES = ("d0", "d1", "d2", "p0", "p1", "p2")
STATUS, STREAM = FailureClass.INFERENCE_STATUS, FailureClass.STREAM
GOOD, BAD = ProbeOutcome.GOOD, ProbeOutcome.BAD


class Court:
    """Blame over a judgement, with what both said so far."""

    def __init__(self, **settings: Any) -> None:
        recovery = recovery_settings(**settings)
        self.judgement = Judgement(ENGINES, recovery, interval_s=1.0)
        self.judgement.standings.able = {leg: frozenset(ENGINES) for leg in (Leg.PREFILL, Leg.DECODE)}
        self.blame = Blame(self.judgement, recovery, interval_s=1.0)
        self.now = NOW

    def __call__(self, *evidence: Evidence) -> list[Effect]:
        """What the last one brought."""
        effects: tuple[Effect, ...] = ()
        for one in evidence:
            effects = self.blame.step(one, self.now)
            self.blame.check_invariants()
            self.blame.pressure.check_invariants(self.now)
        return list(effects)

    @property
    def held(self) -> dict[str, str]:
        return {iid: hold.kind.value for iid, hold in self.judgement.standings.holds(self.now).items()}

    @property
    def streaks(self) -> dict[str, dict[str, int]]:
        return {iid: dict(streaks) for iid, streaks in self.judgement.view(self.now).failures.items()}

    @property
    def out(self) -> tuple[str, ...]:
        return self.judgement.standings.ejected()

    @property
    def avoided(self) -> dict[str, set[str]]:
        return {iid: set(names) for iid, names in self.blame.edges.avoided.items()}


def decode_failed(
    iid: str, peer: str = "", request: bytes = b"", failure: FailureClass = STATUS
) -> LegFailed:
    way = f"{failure}:500"
    return LegFailed(iid, Leg.DECODE, failure, way, "500", peer=peer, request=request)


def prefill_failed(iid: str, request: bytes = b"") -> LegFailed:
    return LegFailed(iid, Leg.PREFILL, STATUS, "inference_status:500", "500", request=request)


def crossed(producer: str, consumer: str) -> LegSucceeded:
    return LegSucceeded(consumer, Leg.DECODE, producer)


def probes(effects: list[Effect]) -> list[ProbeWanted]:
    return [effect for effect in effects if isinstance(effect, ProbeWanted)]


def told(effects: list[Effect]) -> list[str]:
    return [effect.kind for effect in effects if isinstance(effect, Told)]


def test_a_stream_is_known_to_do_well_as_of_its_dispatch() -> None:
    """Streams that were under way when a producer broke end well for minutes: they pulled before."""
    court = Court()
    court(*[decode_failed("d0", "p0")] * 3)
    for producer, consumer in (("p0", "d1"), ("p1", "d0")):
        court(LegSucceeded(consumer, Leg.DECODE, producer, began=NOW - 1))
    assert court.avoided == {}
    for producer, consumer in (("p0", "d1"), ("p1", "d0")):
        court(LegSucceeded(consumer, Leg.DECODE, producer, began=NOW))
    assert court.avoided == {"p0": {"d0"}}


# --- the request ---


def test_a_request_that_fails_in_the_same_way_on_two_engines_is_charged_to_neither() -> None:
    court = Court(failure_quarantine_s=60.0)
    court(prefill_failed("p0", b"poison"))
    assert (court.streaks, court.held) == ({"p0": {"inference_status": 1}}, {"p0": "quarantine"})
    effects = court(prefill_failed("p1", b"poison"))
    assert (court.streaks, court.held, court.out) == ({}, {}, ())
    assert told(effects)[0] == "request_suspected"
    assert any(isinstance(effect, RequestSuspected) for effect in effects), "it is not retried"
    assert probes(effects) == [
        ProbeWanted(ProbeKind.INFERENCE, "p0"),
        ProbeWanted(ProbeKind.INFERENCE, "p1"),
    ], "both owe an inference probe, without a hold"


def test_what_others_added_is_not_taken_back() -> None:
    court = Court(failure_quarantine_s=60.0)
    court(prefill_failed("p0", b"another"), prefill_failed("p0", b"poison"), prefill_failed("p1", b"poison"))
    assert (court.streaks, court.held) == ({"p0": {"inference_status": 1}}, {"p0": "quarantine"})


def test_no_engine_is_held_however_often_one_poisoned_request_is_sent_to_all() -> None:
    court = Court()
    for _ in range(20):
        for iid in ("p0", "p1", "p2"):
            court(prefill_failed(iid, b"poison"))
    assert (court.streaks, court.held, court.out) == ({}, {}, ())


def test_its_engines_are_looked_at_again_only_after_a_pause() -> None:
    court = Court()
    court(prefill_failed("p0", b"poison"), prefill_failed("p1", b"poison"))
    court(InferenceProbed("p0", GOOD), InferenceProbed("p1", GOOD))
    assert probes(court(prefill_failed("p0", b"poison"))) == []
    court.now += LOOK_AGAIN_S
    asked = {one.iid for one in probes(court(prefill_failed("p0", b"poison")))}
    assert asked == {"p0", "p1"}


def test_a_failed_probe_is_that_engines_own() -> None:
    court = Court()
    court(prefill_failed("p0", b"poison"), prefill_failed("p1", b"poison"), InferenceProbed("p0", BAD))
    assert court.out == ("p0",)


def test_a_poisoned_decode_is_taken_back_from_its_edges_too() -> None:
    court = Court()
    court(decode_failed("d0", "p0", b"poison"), decode_failed("d1", "p1", b"poison"))
    assert (court.streaks, court.blame.edges.view(NOW)) == ({}, ())


# --- the pair ---


def test_a_pair_that_fails_while_both_ends_do_well_with_others_costs_neither_engine() -> None:
    court = Court()
    others = (crossed("p0", "d1"), crossed("p1", "d0"))
    for _ in range(2):
        assert told(court(decode_failed("d0", "p0"), *others)) == []
    effects = court(decode_failed("d0", "p0"))
    assert told(effects) == ["edge_avoided"]
    assert probes(effects) == [ProbeWanted(ProbeKind.EDGE, "d0", "p0")]
    assert (court.avoided, court.streaks, court.held, court.out) == ({"p0": {"d0"}}, {}, {}, ())
    assert told(court(EdgeProbed("p0", "d0", GOOD))) == ["edge_restored"]
    assert court.avoided == {}


def test_after_a_bad_probe_across_an_edge_the_engine_is_probed_across_another_producer() -> None:
    court = Court()
    court(*[decode_failed("d0", "p0")] * 3)
    assert court.held == {"d0": "inference"}
    effects = court(crossed("p1", "d1"), InferenceProbed("d0", BAD, peer="p0"))
    assert (court.out, court.avoided) == ((), {"p0": {"d0"}})
    (asked,) = probes(effects)
    assert (asked.iid, asked.producer in ENGINES, asked.producer in ("d0", "p0")) == ("d0", True, False)
    court(InferenceProbed("d0", GOOD, peer=asked.producer))
    assert (court.held, court.avoided, court.out) == ({}, {"p0": {"d0"}}, ())


def test_it_is_the_producer_that_last_did_well_with_it() -> None:
    court = Court()
    court(crossed("p1", "d0"), *[decode_failed("d0", "p0")] * 3)
    asked = probes(court(InferenceProbed("d0", BAD, peer="p0")))
    assert asked == [ProbeWanted(ProbeKind.INFERENCE, "d0", "p1")]


def test_a_consumer_that_fails_across_two_producers_is_out_after_eject_after_requests() -> None:
    court = Court()
    court.judgement.standings.able = two_by(2)
    court(crossed("p1", "d0"), *[decode_failed("d0", "p0")] * 3)
    assert probes(court(InferenceProbed("d0", BAD, peer="p0"))) == [
        ProbeWanted(ProbeKind.INFERENCE, "d0", "p1")
    ]
    court(InferenceProbed("d0", BAD, peer="p1"))
    assert court.out == ("d0",)


def test_a_local_probe_is_no_answer_where_one_across_is_owed() -> None:
    court = Court()
    court(*[decode_failed("d0", "p0")] * 3)
    effects = court(InferenceProbed("d0", GOOD))
    assert probes(effects) == [ProbeWanted(ProbeKind.INFERENCE, "d0", "p0")], "asked again at once"
    assert court.held == {"d0": "inference"}
    court(InferenceProbed("d0", GOOD, peer="p0"))
    assert court.held == {}


def test_nor_is_one_that_began_before_the_producer_was_suspected() -> None:
    court = Court()
    court(prefill_failed("p0", b"poison"), prefill_failed("p1", b"poison"))
    court(crossed("p1", "d1"), *[decode_failed(iid, "p0") for iid in ("d0", "d1", "d0")])
    assert court.held == {"p0": "inference"}
    asked = probes(court(InferenceProbed("p0", GOOD)))
    assert [(one.iid, one.consumer) for one in asked] == [("p0", "d1")]
    assert court.held == {"p0": "inference"}


def test_if_it_fails_alone_too_it_is_out() -> None:
    court = Court()
    court(*[decode_failed("d0", "p0")] * 3, InferenceProbed("d0", BAD, peer="p0"))
    court(InferenceProbed("d0", BAD))
    assert court.out == ("d0",)


def two_by(consumers: int) -> dict[Leg, frozenset[str]]:
    """p0 and p1 prefill, so many decode."""
    return {
        Leg.PREFILL: frozenset({"p0", "p1"}),
        Leg.DECODE: frozenset(f"d{number}" for number in range(consumers)),
    }


def test_a_producer_whose_kv_is_bad_is_found_with_one_consumer_left() -> None:
    court = Court()
    court.judgement.standings.able = two_by(1)
    for _ in range(2):
        assert probes(court(crossed("p0", "d0"), decode_failed("d0", "p1"))) == []
    effects = court(crossed("p0", "d0"), decode_failed("d0", "p1"))
    assert probes(effects) == [ProbeWanted(ProbeKind.INFERENCE, "p1", consumer="d0")]
    assert (court.held, court.avoided) == ({"p1": "inference"}, {})
    court(InferenceProbed("p1", BAD, consumer="d0"))
    assert court.out == ("p1",)


def test_also_when_its_failures_came_first() -> None:
    court = Court()
    court.judgement.standings.able = two_by(1)
    court(*[decode_failed("d0", "p1")] * 3)
    assert probes(court(InferenceProbed("d0", BAD, peer="p1"))) == [
        ProbeWanted(ProbeKind.INFERENCE, "d0", "p0")
    ]
    effects = court(InferenceProbed("d0", GOOD, peer="p0"))
    assert ProbeWanted(ProbeKind.INFERENCE, "p1", consumer="d0") in effects
    assert court.held == {"p1": "inference"}
    court(InferenceProbed("p1", GOOD, consumer="d0"))
    assert (court.held, court.avoided, court.out) == ({}, {}, ())


def test_an_accused_producer_is_probed_with_another_consumer_where_there_is_one() -> None:
    court = Court()
    court.judgement.standings.able = two_by(2)
    effects = court(*[decode_failed("d0", "p1")] * 2, crossed("p0", "d0"), decode_failed("d0", "p1"))
    assert probes(effects) == [ProbeWanted(ProbeKind.INFERENCE, "p1", consumer="d1")]
    assert court.held == {}
    assert told(court(InferenceProbed("p1", GOOD, consumer="d1"))) == ["edge_avoided"], "the pair's"
    assert (court.avoided, court.out) == ({"p1": {"d0"}}, ())


def test_and_is_out_if_it_fails_with_that_one_too() -> None:
    court = Court()
    court.judgement.standings.able = two_by(2)
    court(*[decode_failed("d0", "p1")] * 2, crossed("p0", "d0"), decode_failed("d0", "p1"))
    court(InferenceProbed("p1", BAD, consumer="d1"))
    assert court.out == ("p1",)


def test_bad_probes_of_edges_hold_their_consumer_however_long_they_are_avoided() -> None:
    court = Court()
    court.judgement.standings.able = {**two_by(2), Leg.PREFILL: frozenset({"p0", "p1", "p2"})}
    court(crossed("p2", "d0"), EdgeProbed("p0", "d0", BAD), EdgeProbed("p1", "d0", BAD))
    assert court.held == {}, "it works with another"
    effects = court(decode_failed("d0", "p2"), EdgeProbed("p1", "d0", BAD))
    assert court.held == {"d0": "inference"}
    assert [(one.iid, one.producer) for one in probes(effects)] == [("d0", "p1")]
    court(InferenceProbed("d0", BAD, peer="p1"))
    assert court.out == ("d0",)


def test_a_producer_that_fails_with_everybody_is_no_evidence_against_its_consumers() -> None:
    court = Court()
    court.judgement.standings.able = two_by(2)
    court(EdgeProbed("p0", "d1", BAD), *[decode_failed("d0", "p0")] * 3)
    effects = court(InferenceProbed("d0", BAD, peer="p0"))
    assert court.held == {"d0": "inference", "p0": "inference"}
    assert ("d0", "p1") in [(one.iid, one.producer) for one in probes(effects)]
    assert court.out == ()


def test_where_there_is_no_other_producer_the_probe_across_the_edge_decides() -> None:
    court = Court()
    court.judgement.standings.able = {Leg.PREFILL: frozenset({"p0"}), Leg.DECODE: frozenset({"d0", "d1"})}
    court(*[decode_failed("d0", "p0")] * 3, InferenceProbed("d0", BAD, peer="p0"))
    assert court.out == ("d0",)


def test_producers_that_are_out_are_no_others() -> None:
    court = Court(eject_after=1)
    court.judgement.standings.able = {Leg.PREFILL: frozenset({"p0", "p1"}), Leg.DECODE: frozenset({"d0"})}
    court(LegFailed("p1", Leg.PREFILL, FailureClass.CONNECTION, "connection:lost", "gone"))
    court(decode_failed("d0", "p0"), InferenceProbed("d0", BAD, peer="p0"))
    assert court.out == ("d0", "p1")


def test_a_refusal_across_an_edge_is_no_transfers_matter() -> None:
    court = Court()
    court(*[decode_failed("d0", "p0")] * 3, InferenceProbed("d0", BAD, peer="p0", status=401))
    assert court.out == ("d0",)


def test_a_consumer_failing_with_two_producers_is_its_own_evidence() -> None:
    court = Court()
    effects = court(decode_failed("d0", "p0"), decode_failed("d0", "p1"), decode_failed("d0", "p0"))
    assert (court.held, court.avoided) == ({"d0": "inference"}, {})
    assert [one.iid for one in probes(effects)] == ["d0"]


def test_a_producer_failing_with_two_consumers_is_held_and_they_are_not_charged() -> None:
    court = Court()
    court(crossed("p1", "d1"), decode_failed("d0", "p0"), decode_failed("d1", "p0"))
    effects = court(decode_failed("d0", "p0"))
    assert (court.held, court.streaks) == ({"p0": "inference"}, {})
    assert probes(effects) == [ProbeWanted(ProbeKind.INFERENCE, "p0", consumer="d1")]
    court(InferenceProbed("p0", BAD, consumer="d1"))
    assert court.out == ("p0",)


def test_bad_probes_with_two_consumers_hold_the_producer() -> None:
    court = Court()
    court(crossed("p0", "d0"), crossed("p0", "d1"), LegSucceeded("p0", Leg.PREFILL, "", "before"))
    effects = court(LegSucceeded("p0", Leg.PREFILL, "", "after"))
    assert told(effects) == ["peer_restarted"]
    assert {(one.producer, one.iid) for one in probes(effects)} == {("p0", "d0"), ("p0", "d1")}
    assert told(court(EdgeProbed("p0", "d0", BAD))) == ["edge_avoided"]
    assert court.held == {}
    court(EdgeProbed("p0", "d1", BAD))
    assert court.held == {"p0": "inference"}


def test_a_good_probe_across_an_avoided_edge_ends_avoidance_for_whose_sake_ever() -> None:
    court = Court()
    court(EdgeProbed("p0", "d0", BAD), InferenceProbed("d0", GOOD, peer="p0"))
    assert court.avoided == {}
    court(EdgeProbed("p0", "d0", BAD), InferenceProbed("p0", GOOD, consumer="d0"))
    assert court.avoided == {}


@pytest.mark.parametrize(
    ("failure", "leg", "peer"),
    [(STREAM, Leg.DECODE, ""), (FailureClass.CONNECTION, Leg.DECODE, "p0"), (STATUS, Leg.PREFILL, "")],
)
def test_what_is_no_transfers_matter_is_the_engines(failure: FailureClass, leg: Leg, peer: str) -> None:
    court = Court()
    court(LegFailed("d0", leg, failure, f"{failure}:x", "x", peer=peer))
    assert (court.streaks, court.blame.edges.view(NOW)) == ({"d0": {failure.value: 1}}, ())


# --- what is taken back ---


def test_what_a_pair_added_is_taken_back_in_every_class() -> None:
    court = Court()
    court(crossed("p0", "d1"), crossed("p1", "d0"))
    court(*[decode_failed("d0", "p0")] * 2)
    assert court.streaks == {"d0": {"inference_status": 2}}
    court(crossed("p0", "d1"), LegSucceeded("d1", Leg.DECODE, ""))
    court.blame.edges.probed("p1", "d0", outcome=GOOD, now=NOW)
    court(decode_failed("d0", "p0", failure=STREAM))
    assert (court.avoided, court.streaks) == ({"p0": {"d0"}}, {})


def test_also_where_the_second_end_is_seen_to_do_well_later() -> None:
    court = Court()
    court.judgement.standings.able = two_by(2)
    court(*[decode_failed("d0", "p0")] * 2)
    court.blame.edges.probed("p1", "d0", outcome=GOOD, now=NOW)
    court(decode_failed("d0", "p0", failure=STREAM))
    assert court.streaks == {"d0": {"inference_status": 2, "stream": 1}}
    court(crossed("p0", "d1"))
    assert (court.avoided, court.streaks) == ({"p0": {"d0"}}, {})


def test_what_a_pair_added_counts_no_longer_against_its_producer() -> None:
    court = Court()
    court(*[decode_failed("d0", "p0")] * 2, crossed("p1", "d0"))
    court.blame.edges.probed("p0", "d1", outcome=GOOD, now=NOW)
    court(decode_failed("d0", "p0"), decode_failed("d0", "p0"))
    court(decode_failed("d2", "p0"))
    assert court.held == {}


def test_the_engines_own_failures_since_are_not_taken_back_for_an_older_poison() -> None:
    court = Court()
    court(prefill_failed("p0", b"poison"), LegSucceeded("p0", Leg.PREFILL))
    court(prefill_failed("p0", b"one"), prefill_failed("p0", b"two"))
    court(prefill_failed("p1", b"poison"))
    assert court.streaks == {"p0": {"inference_status": 2}}


def test_what_an_edge_never_counted_is_not_taken_back_from_it() -> None:
    court = Court()
    court(*[decode_failed("d0", "p0", failure=STREAM)] * 2)
    silent = [
        LegFailed(iid, Leg.DECODE, STREAM, "stream:silence", "silent", peer="p0", request=b"poison")
        for iid in ("d0", "d1")
    ]
    court(*silent)
    assert [(edge.consumer, edge.failures) for edge in court.blame.edges.view(NOW)] == [("d0", 2)]


# --- a restarted peer ---


def test_a_new_process_start_has_every_edge_that_knew_the_old_process_probed() -> None:
    court = Court()
    court(crossed("p0", "d0"), crossed("p1", "d0"), crossed("p1", "d1"), ProcessSeen("d0", 5.0))
    assert told(court(ProcessSeen("d0", 5.0))) == []
    effects = court(ProcessSeen("d0", 9.0))
    assert {(one.producer, one.iid) for one in probes(effects)} == {("p0", "d0"), ("p1", "d0")}
    assert court.avoided == {}, "it carries traffic meanwhile"


def test_edges_of_an_engine_that_is_out_wait_for_their_probe() -> None:
    court = Court(eject_after=1)
    court(crossed("p0", "d0"), ProcessSeen("p0", 5.0))
    court(LegFailed("p0", Leg.PREFILL, FailureClass.CONNECTION, "connection:lost", "gone"))
    assert court.out == ("p0",)
    assert probes(court(ProcessSeen("p0", 9.0))) == []
    court(Validated("p0", (Check("health", "passed"),)))
    assert ProbeWanted(ProbeKind.EDGE, "d0", "p0") in court.blame.tick(NOW)


# --- a misconfigured engine ---


def test_an_engine_that_refuses_different_requests_is_held_and_out_by_its_probe() -> None:
    court = Court()
    answers = [LegAnswered("p0", Leg.PREFILL, 401, bytes([number])) for number in range(3)]
    effects = court(*answers)
    assert court.held == {"p0": "inference"}
    assert probes(effects) == [ProbeWanted(ProbeKind.INFERENCE, "p0")]
    (ejection,) = [
        one for one in court(InferenceProbed("p0", BAD, status=401)) if told([one]) == ["ejection"]
    ]
    assert isinstance(ejection, Told)
    assert "401" in ejection.fields["reason"]
    assert "engine.engine_api_key_env" in ejection.fields["reason"]


def test_a_probe_that_failed_otherwise_keeps_its_own_words() -> None:
    court = Court()
    (ejection,) = court(InferenceProbed("p0", BAD, status=500, detail="the engine's own error"))
    assert isinstance(ejection, Told)
    assert "the engine's own error" in ejection.fields["reason"]


def test_over_long_prompts_hold_an_engine_for_one_probe_and_not_again_at_once() -> None:
    court = Court()
    answers = [LegAnswered("p0", Leg.PREFILL, 400, bytes([number])) for number in range(3)]
    court(*answers, InferenceProbed("p0", GOOD), *answers)
    assert (court.held, court.out) == ({}, ())


def test_a_2xx_between_refusals_clears_them() -> None:
    court = Court()
    answers = [LegAnswered("p0", Leg.PREFILL, 404, bytes([number])) for number in range(4)]
    court(answers[0], answers[1], LegSucceeded("p0", Leg.PREFILL), answers[2], answers[3])
    assert court.held == {}


# --- back-pressure ---


def test_back_pressure_relieves_and_for_30_s_without_end_it_is_a_fault() -> None:
    court = Court()
    busy = LegFailed("p0", Leg.PREFILL, FailureClass.OVERLOAD, "overload:429", "busy", retry_after_s=4.0)
    court(busy, busy)
    assert dict(court.blame.pressure.relieved(NOW)) == {"p0": NOW + 4.0}
    assert court.held == {}
    asked: list[Effect] = []
    for _ in range(5):
        court.now += 6.2
        asked += court(busy)
    assert [one.kind for one in probes(asked) if one.iid == "p0"] == [ProbeKind.HEALTH, ProbeKind.INFERENCE]
    assert court.held == {"p0": "inference"}
    court(InferenceProbed("p0", GOOD))
    court(busy)
    assert court.held == {}, "begins anew"


def test_a_probe_in_a_burst_of_429_decides_nothing_and_one_after_30_s_of_them_does() -> None:
    court = Court()
    for number in range(3):
        court(LegFailed("d0", Leg.DECODE, STREAM, "stream:silence", "silent", request=b"%d" % number))
    assert court.held == {"d0": "inference"}
    refused = InferenceProbed("d0", BAD, detail="status 429", status=429)
    for after_s in (0, 10, 20):
        court.now = NOW + after_s
        assert court(refused) == []
        assert court.held == {"d0": "inference"}
    court.now = NOW + 30
    court(refused)
    assert court.judgement.standings.is_ejected("d0")


# --- one kind of leg fails in a row ------------------------------------------------------------------


def own(leg: Leg, failure: FailureClass = STATUS, way: str = "", request: bytes = b"") -> LegFailed:
    return LegFailed("d0", leg, failure, way or f"{failure.value}:500", "status 500", request=request)


def test_an_engine_with_both_roles_that_fails_every_decode_is_not_proved_by_its_prefills() -> None:
    court = Court()
    for _ in range(2):
        assert not court(LegSucceeded("d0", Leg.PREFILL), own(Leg.DECODE))
    told = court(LegSucceeded("d0", Leg.PREFILL), own(Leg.DECODE))
    assert court.held == {"d0": "inference"}
    assert any(isinstance(one, ProbeWanted) and one.kind is ProbeKind.INFERENCE for one in told)
    court(InferenceProbed("d0", BAD))
    assert court.judgement.standings.is_ejected("d0")


def test_the_last_engine_is_probed_and_a_failed_probe_takes_it() -> None:
    court = Court()
    court.judgement.standings.able = {leg: frozenset({"d0"}) for leg in (Leg.PREFILL, Leg.DECODE)}
    for _ in range(3):
        told = court(LegSucceeded("d0", Leg.PREFILL), own(Leg.DECODE))
    assert court.held == {}
    assert any(isinstance(one, ProbeWanted) for one in told)
    court(InferenceProbed("d0", BAD))
    assert court.judgement.standings.is_ejected("d0")


def test_health_checks_between_do_not_hide_legs_that_are_all_reset() -> None:
    court = Court()
    for _ in range(3):
        court(
            own(Leg.DECODE, FailureClass.CONNECTION, "connection:lost"),
            LivenessSwept("d0", GOOD, "", streaming=False),
        )
    assert court.held == {"d0": "inference"}
    assert court.streaks == {}


def test_a_good_leg_of_the_kind_or_a_good_probe_ends_it() -> None:
    court = Court()
    two = [LegSucceeded("d0", Leg.PREFILL), own(Leg.DECODE)] * 2
    court(*two, LegSucceeded("d0", Leg.DECODE), *two)
    assert court.held == {}
    court(own(Leg.DECODE))
    assert court.held == {"d0": "inference"}
    court(InferenceProbed("d0", GOOD))
    assert court.held == {}
    court(LegSucceeded("d0", Leg.PREFILL), own(Leg.DECODE))
    assert court.held == {}


def test_one_poisoned_request_is_taken_out_of_it_too() -> None:
    court = Court()
    for request in (b"bad", b"x"):
        court(LegSucceeded("d0", Leg.PREFILL), own(Leg.DECODE, request=request))
    court(LegFailed("d1", Leg.DECODE, STATUS, "inference_status:500", "status 500", request=b"bad"))
    court(LegSucceeded("d0", Leg.PREFILL), own(Leg.DECODE, request=b"y"))
    assert "d0" not in court.held
