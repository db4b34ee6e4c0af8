"""Any evidence in any order: nobody is suspected without cause, charged for another, or avoided for ever."""

from __future__ import annotations

from collections import Counter
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

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
    LegLeft,
    LegSucceeded,
    ProbeOutcome,
    ProcessSeen,
    Validated,
)
from narwhal.model.placement import Demand
from narwhal.policy.poison import REMEMBERED_S
from tests.unit.policy.test_judgement import fleet_of

PRODUCERS, CONSUMERS = ("p0", "p1"), ("d0", "d1")
EVERY_S = 10.0
FAILURES = (
    FailureClass.STREAM,
    FailureClass.INFERENCE_STATUS,
    FailureClass.CONNECTION,
    FailureClass.OVERLOAD,
)

TRANSFERS = FAILURES[:2]

producers, consumers = st.sampled_from(PRODUCERS), st.sampled_from(CONSUMERS)
anyone = st.sampled_from(PRODUCERS + CONSUMERS)
outcomes = st.sampled_from(ProbeOutcome)
requests = st.sampled_from((b"", b"r0", b"r1"))


class Books(RuleBasedStateMachine):
    """`failed`: (engine, class) to failures since the engine was last well that no suspected request did.

    `brought`: (producer, consumer, class) to how many of those the end of the producer's process takes back.
    `shared`: (producer, consumer) to transfers that failed while both were in, since either began anew.
    `own`: those since anything may have disproved them that nobody else can have done.
    `failing`: the consumer whose decode failed last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.fleet = fleet_of(" ".join(PRODUCERS + CONSUMERS), readmit_every=10, failure_quarantine_s=5.0)
        self.failed: Counter[tuple[str, FailureClass]] = Counter()
        self.brought: Counter[tuple[str, str, FailureClass]] = Counter()
        self.shared: Counter[tuple[str, str]] = Counter()
        self.failing = ""
        self.own: Counter[tuple[str, FailureClass]] = Counter()
        self.sent = 0
        self.quarantined: list[tuple[str, float, bytes, FailureClass]] = []
        self.requests: dict[bytes, tuple[float, dict[FailureClass, Counter[str]]]] = {}
        self.asked_at: dict[tuple[str, str], float] = {}
        self.was_out: set[str] = set()
        self.refused: dict[str, set[int]] = {}
        self.proved_at: dict[str, float] = {}

    def step(self, evidence: Evidence) -> list[Effect]:
        served = [leg for leg in (Leg.PREFILL, Leg.DECODE) if self.fleet.can_serve(leg, self.now)]
        holds = self.fleet.standing(self.now).holds
        checks = self.fleet.standings.checks
        # Whose probe told nothing may be a witness: it may stay held for as long as a partner is broken.
        held = {i for i, hold in holds.items() if hold.kind == "inference" and not checks.told_nothing(i)}
        aside = held | set(self.fleet.standings.ejected())
        effects = list(self.fleet.step(evidence, self.now))
        self.producers_are_held_for_others(effects, aside)
        self.note(effects)
        if not any(isinstance(one, Told) and one.kind == "ejection" for one in effects):
            assert all(self.fleet.can_serve(leg, self.now) for leg in served), "a suspicion emptied a role"
        return effects

    def note(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ProbeWanted) and effect.kind is ProbeKind.EDGE:
                self.asked_at[effect.producer, effect.iid] = self.now
            if isinstance(effect, Told) and effect.kind in ("ejection", "readmission", "peer_restarted"):
                self.begins_anew(str(effect.fields["iid"]), given_back=effect.kind != "readmission")
            if isinstance(effect, Told) and effect.kind == "readmission":
                self.refused.pop(effect.fields["iid"], None)
                self.proved_at.pop(effect.fields["iid"], None)

    def begins_anew(self, iid: str, *, given_back: bool) -> None:
        for producer, consumer, failure in [key for key in self.brought if iid in key[:2]]:
            brought = self.brought.pop((producer, consumer, failure))
            if given_back and iid == producer:
                self.failed[consumer, failure] -= brought
        for pair in [pair for pair in self.shared if iid in pair]:
            del self.shared[pair]

    def producers_are_held_for_others(self, effects: list[Effect], aside: set[str]) -> None:
        """Never for what failed on engines that are out or held, or that were when it failed."""
        for one in effects:
            if not isinstance(one, Told) or one.kind != "hold" or not one.enforced:
                continue
            what, _, names = str(one.fields["reason"]).partition(
                " decodes in a row of its KV handoffs failed, on "
            )
            told = names.partition("; ")[0].split(", ") if names else []
            assert not aside & set(told)
            shared = [self.shared[str(one.fields["iid"]), name] for name in told]
            assert all(times or name == self.failing for name, times in zip(told, shared, strict=True)), one
            assert not told or sum(shared) + 1 >= int(what), one

    def remembered(self, request: bytes) -> dict[FailureClass, Counter[str]]:
        """Of this request: class to engine to what it was charged for and that was not taken back."""
        last_at, ways = self.requests.get(request, (self.now, {}))
        if last_at <= self.now - REMEMBERED_S:
            ways = {}
        self.requests[request] = (self.now, ways)
        return ways

    def fresh(self) -> bytes:
        self.sent += 1
        return b"fresh %d" % self.sent

    def disproved(self, iid: str, *failures: FailureClass) -> None:
        for failure in failures or FAILURES:
            del self.own[iid, failure]

    def forget_brought(self, consumer: str, failure: FailureClass | None = None, producer: str = "") -> None:
        """A row is over, or an edge was proved: what it brought its consumer is that one's own."""
        for key in tuple(self.brought):
            if key[1] == consumer and producer in ("", key[0]) and failure in (None, key[2]):
                del self.brought[key]

    def look_at_avoided(self) -> None:
        out = set(self.fleet.standings.ejected())
        for edge in self.fleet.edges(self.now):
            ends = {edge.producer, edge.consumer}
            if not edge.avoided or ends & (out | self.was_out):
                continue
            asked_s = self.now - self.asked_at.get((edge.producer, edge.consumer), self.now)
            assert asked_s <= EVERY_S, f"{edge}: nobody looks again"
        self.was_out = out


class Blamed(Books):
    """What may happen, and what always holds."""

    # --- what happens ----------------------------------------------------------------------------

    @rule(producer=producers, consumer=consumers, failure=st.sampled_from(FAILURES), request=requests)
    def a_decode_fails(self, producer: str, consumer: str, failure: FailureClass, request: bytes) -> None:
        if failure is FailureClass.OVERLOAD:
            request = b""
        elif not request and failure in TRANSFERS:
            request = self.fresh()
        seen = self.remembered(request).setdefault(failure, Counter())
        out = self.fleet.standings.ejected()
        transfer = failure in TRANSFERS
        excused = transfer and producer in out
        self.failing = consumer
        effects = self.step(
            LegFailed(consumer, Leg.DECODE, failure, f"{failure}:x", "x", peer=producer, request=request)
        )
        suspected = any(isinstance(one, RequestSuspected) for one in effects)
        assert suspected is (
            bool(request) and failure is not FailureClass.OVERLOAD and bool(set(seen) - {consumer})
        )
        if not suspected:
            self.failed[consumer, failure] += not excused
            seen[consumer] += not excused
            if transfer and not excused and consumer not in out:
                self.brought[producer, consumer, failure] += request.startswith(b"fresh")
                self.shared[producer, consumer] += 1
            if not excused:
                self.quarantined.append((consumer, self.now + 5.0, request, failure))
            return
        self.quarantined = [one for one in self.quarantined if one[2:] != (request, failure)]
        for iid in seen:
            self.failed[iid, failure] = max(0, self.failed[iid, failure] - seen[iid])
            seen[iid] = 0
        seen[consumer] += 0

    @rule(iid=consumers, failure=st.sampled_from((*TRANSFERS, FailureClass.CONNECTION)))
    def a_local_decode_fails(self, iid: str, failure: FailureClass) -> None:
        """Of a request of its own: nobody else's fault, whatever comes."""
        way = f"{failure}:x"
        request = self.fresh()
        self.step(LegFailed(iid, Leg.DECODE, failure, way, "x", request=request))
        self.quarantined.append((iid, self.now + 5.0, request, failure))
        self.failed[iid, failure] += 1
        self.own[iid, failure] += 1

    @rule(producer=producers, consumer=consumers)
    def three_decodes_fail(self, producer: str, consumer: str) -> None:
        for _ in range(3):
            self.a_decode_fails(producer, consumer, FailureClass.INFERENCE_STATUS, b"")

    @rule(producer=producers, consumer=consumers, failure=st.sampled_from(TRANSFERS), request=requests)
    def a_pair_fails(self, producer: str, consumer: str, failure: FailureClass, request: bytes) -> None:
        """Both of its ends do well with others meanwhile."""
        (other_producer,) = set(PRODUCERS) - {producer}
        (other_consumer,) = set(CONSUMERS) - {consumer}
        self.a_decode_fails(producer, consumer, failure, b"")
        self.a_decode_fails(producer, consumer, failure, request)
        self.a_decode_succeeds(other_producer, consumer)
        self.a_local_decode_fails(consumer, failure)
        self.a_decode_succeeds(producer, other_consumer)
        self.a_decode_fails(producer, consumer, failure, request)

    @rule(failure=st.sampled_from(TRANSFERS), served=st.booleans())
    def a_poisoned_request_goes_round(self, failure: FailureClass, served: bool) -> None:
        self.sent += 1
        request = b"poison %d" % self.sent
        self.a_decode_fails("p0", "d0", failure, request)
        if served:
            self.a_decode_succeeds("p1", "d0")
        self.a_decode_fails("p0", "d1", failure, request)

    @rule(producer=producers, failure=st.sampled_from(TRANSFERS), request=requests)
    def a_producer_fails(self, producer: str, failure: FailureClass, request: bytes) -> None:
        for consumer in (*CONSUMERS, CONSUMERS[0]):
            self.a_decode_fails(producer, consumer, failure, request if consumer == CONSUMERS[1] else b"")

    @rule(consumer=consumers, failure=st.sampled_from(TRANSFERS), status=st.sampled_from((0, 204, 302)))
    def it_fails_twice_by_itself(self, consumer: str, failure: FailureClass, status: int) -> None:
        for _ in range(2):
            self.a_local_decode_fails(consumer, failure)
        if status:
            self.an_engine_refuses(consumer, status, b"r0")

    @rule(producer=producers, consumer=consumers)
    def a_decode_succeeds(self, producer: str, consumer: str) -> None:
        self.step(LegSucceeded(consumer, Leg.DECODE, producer))
        self.refused.pop(consumer, None)
        for failure in FAILURES[:3]:
            del self.failed[consumer, failure], self.own[consumer, failure]
            self.forget_brought(consumer, failure)
            for _, ways in self.requests.values():
                if consumer in ways.get(failure, ()):
                    ways[failure][consumer] = 0  # of a row that is over: nothing to be taken back

    @rule(iid=producers, name=st.sampled_from("abc"))
    def a_prefill_succeeds(self, iid: str, name: str) -> None:
        self.step(LegSucceeded(iid, Leg.PREFILL, "", name))
        self.refused.pop(iid, None)

    @rule(iid=anyone, status=st.sampled_from((204, 302, 400, 401, 404)), request=requests)
    def an_engine_refuses(self, iid: str, status: int, request: bytes) -> None:
        effects = self.step(LegAnswered(iid, Leg.PREFILL, status, request))
        if status >= 400:
            self.disproved(iid, FailureClass.CONNECTION, FailureClass.INFERENCE_STATUS)
        proved_s = self.now - self.proved_at.get(iid, -inf)
        if status == 400 and proved_s < 10.0:
            assert effects == []
            return
        row = self.refused.setdefault(iid, set())
        row.add(status)
        for one in effects:
            if row == {400} and isinstance(one, Told) and one.kind == "hold" and one.enforced:
                assert proved_s >= 60.0, "a client held it again"
                assert "waits" not in one.fields["reason"], "a client's requests refuted its probe"

    @rule(iid=anyone)
    def three_are_refused(self, iid: str) -> None:
        for number in range(3):
            self.an_engine_refuses(iid, 400, b"n%d" % number)

    @rule(producer=producers, consumer=consumers, outcome=outcomes)
    def an_edge_is_probed(self, producer: str, consumer: str, outcome: ProbeOutcome) -> None:
        self.asked_at[producer, consumer] = self.now
        self.step(EdgeProbed(producer, consumer, outcome))
        known = {(edge.producer, edge.consumer): edge for edge in self.fleet.edges(self.now)}
        edge = known.get((producer, consumer))
        out = {producer, consumer} & set(self.fleet.standings.ejected())
        if outcome is ProbeOutcome.GOOD or (outcome is ProbeOutcome.BAD and not out):
            assert (edge is not None and edge.avoided) is (outcome is ProbeOutcome.BAD)
        if outcome is ProbeOutcome.GOOD:
            self.forget_brought(consumer, producer=producer)

    @rule(
        iid=anyone,
        peer=st.sampled_from(("", *PRODUCERS)),
        outcome=outcomes,
        status=st.sampled_from((0, 0, 500, 408, 429)),
    )
    def an_engine_is_probed(self, iid: str, peer: str, outcome: ProbeOutcome, status: int) -> None:
        peer = "" if peer == iid else peer
        avoided = [edge for edge in self.fleet.edges(self.now) if edge.avoided]
        moot = peer in self.fleet.standings.ejected()
        effects = self.step(InferenceProbed(iid, outcome, peer, "seen", status))
        if outcome is ProbeOutcome.BAD and status in (408, 429):
            assert [edge for edge in self.fleet.edges(self.now) if edge.avoided] == avoided
        self.asked_at[peer, iid] = self.now
        if outcome is ProbeOutcome.GOOD:
            self.forget_brought(iid)
            self.disproved(iid)
        if outcome is ProbeOutcome.GOOD and self.refused.pop(iid, None):
            self.proved_at[iid] = self.now
        ejected = [one for one in effects if isinstance(one, Told) and one.kind == "ejection"]
        if outcome is not ProbeOutcome.BAD or moot:
            assert not ejected

    @rule(producer=producers, consumer=consumers, outcome=outcomes, own_leg=st.booleans())
    def a_producer_is_probed(
        self, producer: str, consumer: str, outcome: ProbeOutcome, own_leg: bool
    ) -> None:
        """A pull that fails convicts it only where another edge of it is in trouble, or nobody else is in."""
        self.asked_at[producer, consumer] = self.now
        out = set(self.fleet.standings.ejected())
        troubled = (
            {edge.consumer for edge in self.fleet.edges(self.now) if edge.producer == producer}
            - out
            - {consumer}
        )
        left = set(self.fleet.standings.engines) - out - {producer, consumer}
        effects = self.step(
            InferenceProbed(producer, outcome, "", "seen", consumer=consumer, own_leg=own_leg)
        )
        if outcome is ProbeOutcome.GOOD:
            self.forget_brought(producer)
            self.forget_brought(consumer, producer=producer)
            self.disproved(producer)
            if self.refused.pop(producer, None):
                self.proved_at[producer] = self.now
        ejected = [one for one in effects if isinstance(one, Told) and one.kind == "ejection"]
        if ejected:
            assert outcome is ProbeOutcome.BAD
            assert consumer not in out
            assert own_leg or troubled or not left

    @rule(
        iid=anyone, leg=st.sampled_from((Leg.PREFILL, Leg.DECODE)), waited_s=st.sampled_from((1.0, 6.0, 20.0))
    )
    def clients_leave(self, iid: str, leg: Leg, waited_s: float) -> None:
        before = self.fleet.standing(self.now)
        for _ in range(3):
            effects = self.step(LegLeft(iid, leg, sent_at=self.now - waited_s, limit_s=10.0))
            assert not any(isinstance(one, Told) for one in effects), "it holds nobody, and ejects nobody"
        after = self.fleet.standing(self.now)
        assert (after.failures, after.holds) == (before.failures, before.holds)

    @rule(iid=anyone, start=st.sampled_from((1.0, 2.0)))
    def a_process_is_seen(self, iid: str, start: float) -> None:
        self.step(ProcessSeen(iid, start))

    @rule(iid=anyone)
    def an_engine_passes_its_checks(self, iid: str) -> None:
        self.step(Validated(iid, (Check("health", "passed"),)))
        self.disproved(iid)

    @rule(passes=st.integers(1, 30))
    def time_passes(self, passes: int) -> None:
        for _ in range(passes):
            self.now += 1.0
            self.note(list(self.fleet.tick(self.now)))
            self.look_at_avoided()

    # --- what always holds -----------------------------------------------------------------------

    @invariant()
    def streaks_have_their_evidence(self) -> None:
        for iid, streaks in self.fleet.standing(self.now).failures.items():
            for failure, count in streaks.items():
                assert count <= self.failed[iid, FailureClass(failure)], (iid, failure)
        streaks = self.fleet.standing(self.now).failures
        for (iid, failed), count in self.own.items():
            assert count <= streaks.get(iid, {}).get(failed.value, 0), (iid, failed, "its own, taken back")

    @invariant()
    def quarantines_have_a_failure_that_no_suspected_request_did(self) -> None:
        held = self.fleet.standing(self.now).holds
        quarantined = {iid for iid, hold in held.items() if hold.kind == "quarantine"}
        assert quarantined <= {iid for iid, until, *_ in self.quarantined if until > self.now}

    @invariant()
    def machines_are_sound_and_somebody_serves(self) -> None:
        self.fleet.check_invariants()
        for place in (
            self.fleet.reserve_prefill(Demand(1), self.now),
            self.fleet.reserve_decode(Demand(1), self.now, producer="p0"),
        ):
            assert (place is not None) is bool(self.fleet.available(self.now))
            if place is not None:
                assert self.fleet.eligible(place.iid, self.now)
                self.fleet.release(place, self.now)


TestBlamed = Blamed.TestCase
TestBlamed.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
