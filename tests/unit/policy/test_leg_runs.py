"""Engines on which one kind of leg fails in a row, whatever else of theirs goes well."""

from __future__ import annotations

import pytest

from narwhal.model.engine import Leg
from narwhal.model.evidence import FailureClass, LegAnswered, LegFailed
from narwhal.policy.leg_runs import LegRuns

STATUS = FailureClass.INFERENCE_STATUS


def lost(
    failure: FailureClass = STATUS, *, leg: Leg = Leg.DECODE, peer: str = "", request: bytes = b""
) -> LegFailed:
    return LegFailed("e", leg, failure, f"{failure.value}:x", "it broke", peer=peer, request=request)


def runs(*evidence: LegFailed | LegAnswered) -> list[str]:
    """The reasons that each of it brought, with `eject_after` 3."""
    machine = LegRuns(eject_after=3)
    told = []
    for one in evidence:
        run = machine.answered(one) if isinstance(one, LegAnswered) else machine.failed(one)
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
    machine = LegRuns(eject_after=2)
    machine.answered(refused(b"a"))
    run = machine.answered(refused(b"b"))
    assert run is not None and run.of_clients and run.hold
    run = machine.failed(lost())
    assert run is not None and not run.of_clients


@pytest.mark.parametrize(
    "one",
    [
        lost(FailureClass.OVERLOAD),
        lost(peer="p"),
        LegAnswered("e", Leg.DECODE, 400),
        LegAnswered("e", Leg.DECODE, 413),
        LegAnswered("e", Leg.DECODE, 422),
    ],
    ids=["back-pressure", "a failed transfer", "400", "413", "422"],
)
def test_what_may_be_nobodys_or_anothers_fault_neither_counts_nor_clears(
    one: LegFailed | LegAnswered,
) -> None:
    assert runs(one, one, one, one) == [""] * 4
    assert runs(lost(), one, lost(), one, lost())[-1]


def test_kinds_of_legs_count_apart_and_a_good_one_clears_its_own() -> None:
    machine = LegRuns(eject_after=2)
    assert machine.failed(lost()) is None
    assert machine.failed(lost(leg=Leg.PREFILL)) is None
    machine.succeeded("e", Leg.PREFILL)
    assert machine.engines == {"e"}
    assert machine.failed(lost()) is not None
    machine.succeeded("e", Leg.DECODE)
    assert not machine.engines
    machine.check_invariants()


def test_slowness_alone_holds_nobody() -> None:
    machine = LegRuns(eject_after=2)
    machine.failed(lost(FailureClass.TIMEOUT))
    run = machine.failed(lost(FailureClass.CONNECTION))
    assert run is not None and not run.hold
    run = machine.failed(lost(FailureClass.CONNECTION))
    assert run is not None and run.hold


def test_a_poisoned_request_is_taken_out_of_it() -> None:
    machine = LegRuns(eject_after=3)
    for request in (b"bad", b"good", b"bad"):
        machine.failed(lost(request=request))
    machine.pardon("e", b"bad")
    assert machine.failed(lost(request=b"2")) is None
    machine.pardon("e", b"good")
    machine.pardon("e", b"2")
    assert not machine.engines
    machine.pardon("e", b"2")
    machine.forget("e")
