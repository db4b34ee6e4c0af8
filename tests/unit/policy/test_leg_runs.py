"""Engines on which one kind of leg fails in a row, whatever else of theirs goes well."""

from __future__ import annotations

import pytest

from narwhal.model.engine import Leg
from narwhal.model.evidence import FailureClass, LegAnswered, LegFailed, LegSucceeded
from narwhal.policy.leg_runs import LegRuns

STATUS = FailureClass.INFERENCE_STATUS


def lost(
    failure: FailureClass = STATUS, *, leg: Leg = Leg.DECODE, peer: str = "", request: bytes = b""
) -> LegFailed:
    return LegFailed("e", leg, failure, f"{failure.value}:x", "it broke", peer=peer, request=request)


def rows(eject_after: int = 3, *, failing: str = "") -> LegRuns:
    """The KV of producers in `failing` fails with other consumers too."""
    return LegRuns(eject_after=eject_after, fails_elsewhere=lambda producer, _: producer in failing.split())


def runs(
    *evidence: LegFailed | LegAnswered | LegSucceeded, charged: bool = True, failing: str = ""
) -> list[str]:
    """The reasons that each of it brought, with `eject_after` 3."""
    machine = rows(failing=failing)
    told = []
    for one in evidence:
        run = None
        if isinstance(one, LegSucceeded):
            machine.succeeded(one)
        else:
            run = (
                machine.answered(one)
                if isinstance(one, LegAnswered)
                else machine.failed(one, charged=charged)
            )
        machine.check_invariants()
        told.append(run.reason if run else "")
    return told


def test_from_the_third_failed_leg_of_a_kind_on_it_is_suspected_each_time() -> None:
    reason = "3 decode legs in a row failed, last: it broke"
    assert runs(*[lost()] * 4) == ["", "", reason, reason]


def test_failures_of_any_classes_and_refusals_count_together() -> None:
    told = runs(lost(FailureClass.CONNECTION), lost(FailureClass.STREAM), LegAnswered("e", Leg.DECODE, 404))
    assert told == ["", "", "3 decode legs in a row failed, last: status 404"]


def refused(request: bytes, status: int = 403) -> LegAnswered:
    return LegAnswered("e", Leg.DECODE, status, request)


def test_a_request_that_is_refused_again_and_again_counts_once() -> None:
    assert runs(*[refused(b"a", status) for status in (403, 404, 451, 403)]) == [""] * 4
    assert runs(refused(b"a"), lost(), refused(b"a"), refused(b"a"), lost())[-2:] == [
        "",
        "3 decode legs in a row failed, last: it broke",
    ]


def test_refusals_of_different_requests_count_each() -> None:
    reason = "3 decode legs in a row failed, last: status 403"
    assert runs(refused(b"a"), refused(b"b"), refused(b"b"), refused(b"c")) == ["", "", "", reason]


def test_a_row_of_nothing_but_refusals_is_told_from_others() -> None:
    machine = rows(2)
    machine.answered(refused(b"a"))
    run = machine.answered(refused(b"b"))
    assert run is not None and run.of_clients and run.hold
    run = machine.failed(lost(), charged=True)
    assert run is not None and not run.of_clients


@pytest.mark.parametrize(
    "one",
    [
        lost(FailureClass.OVERLOAD),
        LegAnswered("e", Leg.DECODE, 400),
        LegAnswered("e", Leg.DECODE, 413),
        LegAnswered("e", Leg.DECODE, 422),
    ],
    ids=["back-pressure", "400", "413", "422"],
)
def test_what_may_be_nobodys_or_anothers_fault_neither_counts_nor_clears(
    one: LegFailed | LegAnswered,
) -> None:
    assert runs(one, one, one, one) == [""] * 4
    assert runs(lost(), one, lost(), one, lost())[-1]


def good(leg: Leg, peer: str = "") -> LegSucceeded:
    return LegSucceeded("e", leg, peer)


REASON = "3 decode legs in a row failed, last: it broke"


def test_pulls_from_two_producers_are_the_consumers_own() -> None:
    assert runs(lost(peer="p"), lost(peer="q"), lost(peer="p"), failing="p q") == ["", "", REASON]


def test_pulls_from_one_are_where_its_kv_fails_with_nobody_else() -> None:
    assert runs(*[lost(peer="p")] * 3) == ["", "", REASON]
    assert runs(*[lost(peer="p")] * 5, failing="p") == [""] * 5


def test_what_is_not_charged_to_the_consumer_is_nothing() -> None:
    assert runs(*[lost(peer="p"), lost(peer="q")] * 3, charged=False) == [""] * 6


def test_pulls_and_other_decodes_count_together() -> None:
    assert runs(lost(), lost(peer="p"), lost())[-1] == REASON
    assert runs(lost(), lost(), *[lost(peer="p")] * 3, lost(), failing="p") == [*[""] * 5, REASON]


def test_a_decode_of_its_own_kv_proves_no_pull() -> None:
    between = [good(Leg.DECODE), good(Leg.PREFILL)]
    assert runs(lost(peer="p"), *between, lost(peer="p"), *between, lost(peer="p"))[-1] == REASON
    assert runs(lost(), *between, lost(), *between, lost())[-1] == ""


def test_a_good_pull_proves_decodes_and_pulls() -> None:
    assert runs(lost(), lost(peer="p"), good(Leg.DECODE, "q"), lost(), lost(peer="p"))[-1] == ""


def test_whose_kv_it_was_is_told_the_newest_first() -> None:
    machine = rows()
    for peer in "pqq":
        run = machine.failed(lost(peer=peer), charged=True)
    assert run is not None and run.producers == ("q", "p")
    assert run.hold and not run.of_clients


def test_pulls_that_were_anothers_fault_are_taken_out_of_it() -> None:
    machine = rows()
    for peer in "ppq":
        machine.failed(lost(peer=peer), charged=True)
    machine.taken_back(("e", STATUS, "q", 0), 1)
    machine.taken_back(("e", FailureClass.STREAM, "p", 0), 2)
    machine.taken_back(("x", STATUS, "p", 0), 2)
    machine.taken_back(("e", STATUS, "p", 0), 0)
    assert machine.failed(lost(peer="p"), charged=True) is not None
    machine.taken_back(("e", STATUS, "p", 7), 2)
    machine.check_invariants()
    assert machine.failed(lost(peer="p"), charged=True) is None
    machine.taken_back(("e", STATUS, "p", 0), 9)
    assert not machine.engines


def test_kinds_of_legs_count_apart_and_a_good_one_clears_its_own() -> None:
    machine = rows(2)
    assert machine.failed(lost(), charged=True) is None
    assert machine.failed(lost(leg=Leg.PREFILL), charged=True) is None
    machine.succeeded(good(Leg.PREFILL))
    assert machine.engines == {"e"}
    assert machine.failed(lost(), charged=True) is not None
    machine.succeeded(good(Leg.DECODE))
    assert not machine.engines
    machine.check_invariants()


def test_slowness_alone_holds_nobody() -> None:
    machine = rows(2)
    machine.failed(lost(FailureClass.TIMEOUT), charged=True)
    run = machine.failed(lost(FailureClass.CONNECTION), charged=True)
    assert run is not None and not run.hold
    run = machine.failed(lost(FailureClass.CONNECTION), charged=True)
    assert run is not None and run.hold


def test_a_poisoned_request_is_taken_out_of_it() -> None:
    machine = rows()
    for request in (b"bad", b"good", b"bad"):
        machine.failed(lost(request=request), charged=True)
    machine.pardon("e", b"bad")
    assert machine.failed(lost(request=b"2"), charged=True) is None
    machine.pardon("e", b"good")
    machine.pardon("e", b"2")
    assert not machine.engines
    machine.pardon("e", b"2")
    machine.forget("e")
