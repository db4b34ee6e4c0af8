"""An engine that refuses different requests in a row is suspected of a wrong set-up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.model.engine import Leg
from narwhal.model.evidence import LegAnswered
from narwhal.policy.refusals import Refusals, Refused, is_refusal, why_refused

NOW = 100.0
OF_CLIENTS = (400, 413, 422)


def answer(request: bytes, status: int = 404, iid: str = "e0") -> LegAnswered:
    return LegAnswered(iid, Leg.PREFILL, status, request)


def machine(eject_after: int = 3) -> Refusals:
    return Refusals(eject_after=eject_after)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
def test_different_requests_refused_in_a_row_make_an_engine_suspect(status: int) -> None:
    refusals = machine()
    told = [refusals.answered(answer(request, status), NOW) for request in (b"1", b"2", b"3")]
    reason = f"3 different requests in a row were refused, the last with {status}"
    assert told == [None, None, Refused(reason, of_clients=status in OF_CLIENTS, hold=True)]
    assert refusals.answered(answer(b"4", status), NOW) == told[-1]


def test_the_same_request_counts_once() -> None:
    refusals = machine()
    assert {refusals.answered(answer(b"1"), NOW) for _ in range(9)} == {None}
    assert refusals.answered(answer(b"2"), NOW) is None
    assert refusals.answered(answer(b"3"), NOW) is not None


def test_a_2xx_between_begins_anew() -> None:
    refusals = machine()
    refusals.answered(answer(b"1"), NOW)
    refusals.answered(answer(b"2"), NOW)
    refusals.succeeded("e0")
    told = [refusals.answered(answer(request), NOW) for request in (b"3", b"4", b"5")]
    assert [one is not None for one in told] == [False, False, True]


def test_engines_are_judged_apart() -> None:
    refusals = machine()
    for iid in ("e0", "e1", "e2"):
        assert refusals.answered(answer(iid.encode(), iid=iid), NOW) is None
    refusals.succeeded("e9")
    assert refusals.engines == {"e0", "e1", "e2"}
    refusals.succeeded("e1")
    assert refusals.engines == {"e0", "e2"}


def test_after_a_good_probe_clients_cannot_make_it_suspect_again_at_once() -> None:
    refusals = machine(1)
    assert refusals.answered(answer(b"1", 400), NOW) is not None
    refusals.proved("e0", NOW)
    assert refusals.answered(answer(b"2", 400), NOW + 9.9) is None
    assert refusals.answered(answer(b"2", 401), NOW + 1) is not None
    refusals.proved("e0", NOW + 1)
    assert refusals.answered(answer(b"3", 413), NOW + 11) is not None


def test_for_a_minute_after_a_good_probe_they_can_have_it_probed_and_not_held() -> None:
    refusals = machine(1)

    def holds(status: int, at: float) -> bool:
        told = refusals.answered(answer(b"1", status), NOW + at)
        assert told is not None
        return told.hold

    assert holds(400, 0.0)
    refusals.proved("e0", NOW)
    assert not holds(400, 10.0)
    assert not holds(422, 59.9)
    refusals.proved("e0", NOW + 59.9)
    assert not holds(413, 119.8)
    assert holds(413, 120.0)


def test_one_status_of_the_set_up_among_them_holds_it_however_lately_it_was_proved() -> None:
    refusals = machine(2)
    for request in (b"1", b"2"):
        refusals.answered(answer(request, 400), NOW)
    refusals.proved("e0", NOW)
    assert refusals.answered(answer(b"3", 404), NOW + 12) is None
    told = refusals.answered(answer(b"4", 400), NOW + 13)
    assert told is not None
    assert (told.of_clients, told.hold) == (False, True)


def test_a_good_probe_of_an_engine_that_refused_nothing_excuses_nothing() -> None:
    refusals = machine(1)
    refusals.proved("e0", NOW)
    assert refusals.answered(answer(b"1", 400), NOW + 1) is not None


def test_an_engine_that_begins_anew_is_not_excused() -> None:
    refusals = machine(1)
    refusals.answered(answer(b"1", 400), NOW)
    refusals.proved("e0", NOW)
    refusals.forget("e0")
    assert refusals.answered(answer(b"2", 400), NOW + 1) is not None


@pytest.mark.parametrize(
    ("status", "named"),
    [
        (401, "engine.engine_api_key_env"),
        (403, "does not let this router in"),
        (404, "model name"),
        (418, "418"),
    ],
)
def test_the_reason_names_status_and_likely_setting(status: int, named: str) -> None:
    reason = why_refused(status)
    assert reason.startswith(f"it answers {status}")
    assert named in reason


def test_what_counts_as_a_refusal_of_our_own_request() -> None:
    assert [status for status in (0, 200, 400, 401, 404, 408, 422, 429, 499, 500) if is_refusal(status)] == [
        400,
        401,
        404,
        422,
        499,
    ]


EVENTS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 400, 401])), max_size=40)


@given(events=EVENTS, eject_after=st.integers(1, 4))
def test_suspected_exactly_when_enough_different_ones_came_since_the_last_2xx(
    events: list[tuple[int, int]], eject_after: int
) -> None:
    refusals = machine(eject_after)
    row: set[int] = set()
    for request, status in events:
        if status == 0:
            refusals.succeeded("e0")
            row.clear()
        else:
            row.add(request)
            told = refusals.answered(answer(bytes([request]), status), NOW)
            assert (told is not None) == (len(row) >= eject_after)
        refusals.check_invariants()
