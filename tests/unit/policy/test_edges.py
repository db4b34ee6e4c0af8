"""Whose fault a failed transfer is: the pair's, the producer's, the consumer's, or a restarted peer's."""

from __future__ import annotations

import pytest

from narwhal.errors import InvariantViolation
from narwhal.model.evidence import FailureClass, ProbeOutcome
from narwhal.policy.edge_map import Edge
from narwhal.policy.edges import Edges, Suspect, is_about_transfer
from narwhal.policy.pace import Pace
from narwhal.policy.processes import MOST_IDS, Processes

NOW = 100.0
EVERY_S = 10.0
STREAM = FailureClass.STREAM
STATUS = FailureClass.INFERENCE_STATUS
GOOD, BAD, OPEN = ProbeOutcome.GOOD, ProbeOutcome.BAD, ProbeOutcome.INCONCLUSIVE
ENGINES = ("d0", "d1", "d2", "p0", "p1", "p2")


def machine(*, eject_after: int = 3) -> Edges:
    return Edges(ENGINES, eject_after=eject_after, pace=Pace(10, 1.0), aside=nobody)


def nobody(iid: str) -> bool:
    """Is out."""
    return False


def fail(
    edges: Edges, producer: str, consumer: str, times: int = 1, *, now: float = NOW
) -> Suspect | Edge | None:
    verdict = None
    for _ in range(times):
        verdict = edges.failed(producer, consumer, failure=STATUS, now=now)
        edges.check_invariants()
    return verdict


def cross(edges: Edges, producer: str, consumer: str, now: float = NOW) -> list[tuple[str, str]]:
    avoided = edges.crossed(producer, consumer, now=now)
    edges.check_invariants()
    return [(edge.producer, edge.consumer) for edge in avoided]


def both_ends_do_well_with_others(edges: Edges, now: float = NOW) -> None:
    cross(edges, "p0", "d1", now)
    cross(edges, "p1", "d0", now)


def avoided(edges: Edges) -> dict[str, set[str]]:
    return {producer: set(consumers) for producer, consumers in edges.avoided.items()}


# --- the pair ---


def test_a_decode_that_was_dispatched_before_the_edge_failed_shows_nothing_of_its_ends() -> None:
    edges = machine()
    fail(edges, "p0", "d0", 3, now=NOW + 10)
    both_ends_do_well_with_others(edges, NOW + 9.9)
    assert avoided(edges) == {}
    both_ends_do_well_with_others(edges, NOW + 10)
    assert avoided(edges) == {"p0": {"d0"}}


def test_a_long_stream_that_ends_takes_nothing_from_a_newer_one() -> None:
    edges = machine()
    fail(edges, "p0", "d0", 2, now=NOW + 10)
    both_ends_do_well_with_others(edges, NOW + 11)
    both_ends_do_well_with_others(edges, NOW)
    fail(edges, "p0", "d0", now=NOW + 12)
    assert avoided(edges) == {"p0": {"d0"}}


def test_an_edge_at_eject_after_is_avoided_when_both_ends_do_well_with_others() -> None:
    edges = machine()
    fail(edges, "p0", "d0", 2)
    both_ends_do_well_with_others(edges)
    assert avoided(edges) == {}
    edge = fail(edges, "p0", "d0", now=NOW + 1)
    assert isinstance(edge, Edge)
    assert (edge.producer, edge.consumer) == ("p0", "d0")
    assert edge.reason == "3 failed decodes in a row, both ends do well with others"
    assert avoided(edges) == {"p0": {"d0"}}
    assert edges.due(NOW + 1) == (edge,), "and probed as a pair"


def test_it_is_avoided_as_soon_as_the_second_end_is_seen_to_do_well() -> None:
    edges = machine()
    fail(edges, "p0", "d0", 3)
    assert cross(edges, "p0", "d1", NOW + 1) == []
    assert cross(edges, "p1", "d0", NOW + 2) == [("p0", "d0")]


def test_what_its_ends_did_before_it_began_to_fail_proves_nothing() -> None:
    edges = machine()
    both_ends_do_well_with_others(edges, NOW - 1)
    assert fail(edges, "p0", "d0", 3) is None
    assert avoided(edges) == {}


def test_an_end_without_another_partner_is_not_the_pairs_matter() -> None:
    edges = machine()
    fail(edges, "p0", "d0", 2)
    cross(edges, "p0", "d1")
    assert fail(edges, "p0", "d0", 5, now=NOW + 1) is None
    assert avoided(edges) == {}


def test_an_end_whose_other_edge_fails_too_does_not_do_well() -> None:
    edges = machine()
    fail(edges, "p0", "d0", 2)
    both_ends_do_well_with_others(edges)
    fail(edges, "p1", "d0")
    assert fail(edges, "p0", "d0", now=NOW + 1) is None
    assert avoided(edges) == {}


def test_a_clean_decode_across_it_begins_the_row_anew() -> None:
    edges = machine()
    fail(edges, "p0", "d0", 2)
    cross(edges, "p0", "d0")
    both_ends_do_well_with_others(edges)
    assert fail(edges, "p0", "d0", 2) is None
    assert avoided(edges) == {}


def test_a_failure_that_was_the_requests_is_taken_back() -> None:
    edges = machine()
    fail(edges, "p0", "d0", 2)
    both_ends_do_well_with_others(edges)
    edges.take_back("p0", "d0", failure=STATUS)
    edges.take_back("p2", "d2", failure=STATUS)
    assert fail(edges, "p0", "d0") is None
    edges.take_back("p0", "d0", failure=STATUS)
    edges.check_invariants()
    assert [edge.failures for edge in edges.view(NOW)] == [1]


@pytest.mark.parametrize(
    ("failure", "way", "counts"),
    [
        (STREAM, "stream:first_token", True),
        (STREAM, "stream:early_end", True),
        (STATUS, "inference_status:500", True),
        (STREAM, "stream:silence", False),
        (FailureClass.CONNECTION, "connection:connect", False),
        (FailureClass.TIMEOUT, "timeout:read", False),
        (FailureClass.OVERLOAD, "overload:429", False),
        (FailureClass.KV_HANDOFF, "kv_handoff:invalid", False),
    ],
)
def test_what_may_be_a_transfers_fault(failure: FailureClass, way: str, counts: bool) -> None:
    assert is_about_transfer(failure, way) is counts


# --- the probe of a pair ---


def test_a_good_probe_ends_avoidance_and_the_row() -> None:
    edges = machine()
    edges.probed("p0", "d0", outcome=BAD, now=NOW)
    assert edges.probed("p0", "d0", outcome=GOOD, now=NOW + 1) is not None
    assert (avoided(edges), edges.view(NOW), edges.due(NOW + 99)) == ({}, (), ())


def test_a_bad_probe_keeps_it_avoided_and_it_is_asked_again_after_the_pause() -> None:
    edges = machine()
    edge = edges.probed("p0", "d0", outcome=BAD, now=NOW)
    assert edge is not None
    assert edges.probed("p0", "d0", outcome=BAD, now=NOW + 1) is None
    assert edges.due(NOW + EVERY_S) == ()
    assert edges.due(NOW + 1 + EVERY_S) == (edge,)


@pytest.mark.parametrize("answer", [OPEN, None])
def test_a_probe_that_told_nothing_or_never_ended_is_asked_again(answer: ProbeOutcome | None) -> None:
    edges = machine()
    edges.restore([{"producer": "p0", "consumer": "d0"}], NOW)
    assert len(edges.due(NOW)) == 1
    if answer is not None:
        edges.probed("p0", "d0", outcome=answer, now=NOW + 1)
    assert edges.due(NOW + EVERY_S - 1) == ()
    assert len(edges.due(NOW + 1 + EVERY_S)) == 1
    assert avoided(edges) == {"p0": {"d0"}}


def test_an_edge_is_avoided_for_each_of_its_producers_consumers_apart() -> None:
    edges = machine()
    for consumer in ("d0", "d1"):
        edges.probed("p0", consumer, outcome=BAD, now=NOW)
    edges.probed("p0", "d0", outcome=GOOD, now=NOW)
    edges.check_invariants()
    assert avoided(edges) == {"p0": {"d1"}}


# --- an engine's own fault ---


def test_a_producer_failing_with_two_consumers_is_its_own_evidence() -> None:
    edges = machine()
    cross(edges, "p1", "d1")
    assert fail(edges, "p0", "d0", 2) is None
    suspect = fail(edges, "p0", "d1")
    assert suspect == Suspect(
        "p0",
        "3 decodes in a row of its KV handoffs failed, on d0, d1",
        {("d0", STATUS, 0): 2, ("d1", STATUS, 0): 1},
        consumer="d1",
    )
    assert fail(edges, "p0", "d1", 2) is None, "counts anew"


def test_a_consumer_that_fails_with_others_too_is_not_cleared() -> None:
    edges = machine()
    fail(edges, "p1", "d0")
    fail(edges, "p0", "d0", 2)
    suspect = fail(edges, "p0", "d1")
    assert isinstance(suspect, Suspect)
    assert suspect.cleared == {("d1", STATUS, 0): 1}


def test_a_clean_decode_of_the_producers_kv_anywhere_begins_its_row_anew() -> None:
    edges = machine()
    fail(edges, "p0", "d0", 2)
    cross(edges, "p0", "d2")
    assert fail(edges, "p0", "d1") is None


def test_many_failures_with_one_consumer_alone_say_nothing_of_the_producer() -> None:
    assert fail(machine(), "p0", "d0", 9) is None


def test_failures_that_were_the_requests_do_not_count_against_a_producer() -> None:
    edges = machine()
    fail(edges, "p0", "d0", 2)
    edges.take_back("p0", "d0", failure=STATUS)
    edges.take_back("p0", "d0", failure=STATUS)
    assert fail(edges, "p0", "d1", 2) is None
    assert isinstance(fail(edges, "p0", "d2"), Suspect)


def test_bad_probes_with_two_consumers_and_no_working_edge_are_the_producers() -> None:
    edges = machine()
    first = edges.probed("p0", "d0", outcome=BAD, now=NOW)
    assert first is not None
    assert edges.culprit(first, nobody) is None
    second = edges.probed("p0", "d1", outcome=BAD, now=NOW)
    assert second is not None
    suspect = edges.culprit(second, nobody)
    assert suspect is not None
    assert (suspect.iid, suspect.consumer) == ("p0", "d0")
    cross(edges, "p0", "d2")
    assert edges.culprit(second, nobody) is None


def test_bad_probes_with_two_producers_and_no_working_edge_are_the_consumers() -> None:
    edges = machine()
    edges.probed("p0", "d0", outcome=BAD, now=NOW)
    edge = edges.probed("p1", "d0", outcome=BAD, now=NOW)
    assert edge is not None
    suspect = edges.culprit(edge, nobody)
    assert suspect == Suspect("d0", "probes of KV handoffs from p0, p1 failed on it", {}, producer="p1")
    cross(edges, "p2", "d0")
    assert edges.culprit(edge, nobody) is None


# --- a restarted peer ---


@pytest.mark.parametrize("restarted", ["p0", "d0"])
def test_every_edge_that_knew_the_old_process_is_probed_at_once_and_carries_traffic(restarted: str) -> None:
    edges = machine()
    for producer, consumer in (("p0", "d0"), ("p0", "d1"), ("p1", "d0"), ("p1", "d1")):
        cross(edges, producer, consumer)
    edges.restarted(restarted, NOW + 1)
    edges.check_invariants()
    due = {(edge.producer, edge.consumer) for edge in edges.due(NOW + 1)}
    assert due == {pair for pair in (("p0", "d0"), ("p0", "d1"), ("p1", "d0")) if restarted in pair}
    assert avoided(edges) == {}
    assert {edge.reason for edge in edges.view(NOW)} == {f"{restarted} is a new process"}


def test_a_failed_probe_after_a_restart_makes_the_edge_avoided() -> None:
    edges = machine()
    cross(edges, "p0", "d0")
    edges.restarted("p0", NOW)
    edge = edges.probed("p0", "d0", outcome=BAD, now=NOW)
    assert edge is not None
    assert (avoided(edges), edge.reason) == ({"p0": {"d0"}}, "p0 is a new process")
    assert edges.probed("p0", "d0", outcome=GOOD, now=NOW) is edge
    assert avoided(edges) == {}


def test_edges_that_never_met_are_not_probed_and_failures_of_the_old_process_are_over() -> None:
    edges = machine()
    edges.restarted("p0", NOW)
    assert edges.due(NOW) == ()
    fail(edges, "p0", "d0", 2)
    edges.restarted("p0", NOW)
    assert [edge.failures for edge in edges.due(NOW)] == [0]
    assert fail(edges, "p0", "d1", 2) is None


def test_a_readmitted_engine_begins_anew_and_what_is_avoided_is_probed() -> None:
    edges = machine()
    edges.probed("p0", "d0", outcome=BAD, now=NOW)
    fail(edges, "p0", "d1", 2)
    edges.readmitted("p0", NOW + 1)
    edges.check_invariants()
    assert [(edge.consumer, edge.failures) for edge in edges.due(NOW + 1)] == [("d0", 0)]
    assert fail(edges, "p0", "d2") is None


def test_a_process_is_new_when_its_start_or_its_id_changes() -> None:
    processes = Processes()
    assert [processes.started("p0", start) for start in (5.0, 5.0, 6.5, 6.5)] == [False, False, True, False]
    assert [processes.named("p0", name) for name in ("a", "a", "b", "a")] == [False, False, True, False]
    assert processes.started("p0", 7.0)
    assert not processes.named("p0", "c"), "one restart is told once where the start was read first"
    assert not processes.named("p1", "a")


def test_ids_of_data_parallel_ranks_are_all_known_and_bounded() -> None:
    processes = Processes()
    names = [str(number) for number in range(4)]
    assert [processes.named("p0", name) for name in names * 2] == [False, True, True, True] + [False] * 4
    for number in range(3 * MOST_IDS):
        processes.named("p0", str(number))
        processes.check_invariants()


# --- what travels, what is not ours ---


def test_avoided_edges_travel_and_the_receiver_probes_them_at_once() -> None:
    edges = machine()
    edges.probed("p0", "d0", outcome=BAD, now=NOW - 5)
    fail(edges, "p1", "d1")
    told = edges.export(NOW)
    assert told == [{"producer": "p0", "consumer": "d0", "reason": "a probe across it failed", "age_s": 5.0}]
    other = machine()
    fail(other, "p2", "d2")
    other.restore(told, 1000.0)
    other.check_invariants()
    assert avoided(other) == {"p0": {"d0"}}
    assert [edge.consumer for edge in other.due(1000.0)] == ["d0"]
    assert other.export(1001.0) == [{**told[0], "age_s": 6.0}]


@pytest.mark.parametrize(
    "told",
    [
        None,
        {"p0": ["d0"]},
        ["p0", 7, None],
        [{"producer": "p0"}, {"producer": "p0", "consumer": "p0"}, {"producer": "x", "consumer": "d0"}],
    ],
)
def test_what_is_no_edge_of_ours_is_left_out(told: object) -> None:
    edges = machine()
    edges.restore(told, NOW)
    edges.check_invariants()
    assert edges.export(NOW) == []


@pytest.mark.parametrize("age_s", [None, "5", -1, float("nan"), True])
def test_an_age_that_cannot_be_read_is_none(age_s: object) -> None:
    edges = machine()
    edges.restore([{"producer": "p0", "consumer": "d0", "age_s": age_s}], NOW)
    assert edges.view(NOW)[0].age_s == 0.0


def test_engines_that_are_not_configured_and_local_decodes_have_no_edge() -> None:
    edges = machine()
    for producer, consumer in (("x", "d0"), ("p0", "x"), ("", "d0"), ("p0", "p0")):
        assert fail(edges, producer, consumer, 9) is None
        assert cross(edges, producer, consumer) == []
        assert edges.probed(producer, consumer, outcome=BAD, now=NOW) is None
    edges.restarted("x", NOW)
    assert edges.view(NOW) == ()


def test_accounts_that_contradict_each_other_are_a_bug() -> None:
    edges = machine()
    edges.probed("p0", "d0", outcome=BAD, now=NOW)
    edges.avoided = {}
    with pytest.raises(InvariantViolation, match="placement avoids"):
        edges.check_invariants()
