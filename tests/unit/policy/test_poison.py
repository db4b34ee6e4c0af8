"""A request that fails in the same way on two engines is suspected, not the engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from narwhal.model.engine import Leg
from narwhal.model.evidence import CountFailed, FailureClass, LegFailed
from narwhal.policy.poison import MOST_CHARGES, REMEMBERED_S, UNSENT, Counted, Poison

NOW = 100.0
STATUS = FailureClass.INFERENCE_STATUS


def failed(
    iid: str, request: bytes = b"digest", way: str = "inference_status:500", **changes: Any
) -> LegFailed:
    values: dict[str, Any] = {"leg": Leg.DECODE, "failure": STATUS, "detail": "500", **changes}
    return LegFailed(iid, way=way, request=request, **values)


class Charging(Poison):
    """Whatever suspects nobody is held against its engine, but for what was counted before."""

    def failed(self, evidence: LegFailed, now: float, *, row: int = 0) -> Mapping[Counted, int] | None:
        told = super().failed(evidence, now)
        if told is None and not evidence.again:
            self.charged(evidence, row=row)
        return told


def test_one_engine_alone_is_no_suspicion_however_often() -> None:
    poison = Charging()
    assert [poison.failed(failed("a"), NOW) for _ in range(5)] == [None] * 5


def test_the_same_way_on_a_second_engine_gives_back_what_the_first_was_charged() -> None:
    poison = Charging()
    poison.failed(failed("a", peer="p"), NOW)
    poison.failed(failed("a", peer="q"), NOW + 1)
    poison.failed(failed("a", peer="q"), NOW + 1)
    assert poison.failed(failed("b"), NOW + 2) == {("a", STATUS, "p", 0): 1, ("a", STATUS, "q", 0): 2}
    assert poison.engines(failed("b")) == ("a", "b")


def test_a_suspect_stays_one_on_every_engine_and_nothing_is_given_back_twice() -> None:
    poison = Charging()
    poison.failed(failed("a"), NOW)
    poison.failed(failed("b"), NOW)
    assert poison.failed(failed("c"), NOW) == {}
    assert poison.failed(failed("a"), NOW) == {}
    assert poison.engines(failed("a")) == ("a", "b", "c")


def test_another_way_on_the_second_engine_is_two_faults() -> None:
    poison = Charging()
    poison.failed(failed("a", way="inference_status:500"), NOW)
    assert poison.failed(failed("b", way="stream:early_end", failure=FailureClass.STREAM), NOW) is None
    assert poison.failed(failed("b", way="inference_status:500"), NOW) is not None


def test_another_request_is_another_matter() -> None:
    poison = Charging()
    poison.failed(failed("a", b"one"), NOW)
    assert poison.failed(failed("b", b"two"), NOW) is None


def test_a_request_is_remembered_for_60_s_after_its_last_failure() -> None:
    poison = Charging()
    poison.failed(failed("a"), NOW)
    poison.failed(failed("a"), NOW + 50)
    assert poison.failed(failed("b"), NOW + 109.9) is not None
    poison = Charging()
    poison.failed(failed("a"), NOW)
    assert poison.failed(failed("b"), NOW + 60) is None


def test_the_last_1024_failed_requests_are_remembered() -> None:
    poison = Charging()
    for number in range(1024):
        poison.failed(failed("a", str(number).encode()), NOW)
    assert poison.failed(failed("b", b"0"), NOW) is not None
    poison.failed(failed("a", b"one more"), NOW)
    assert len(poison) == 1024
    assert poison.failed(failed("b", b"1"), NOW) is None
    assert poison.failed(failed("b", b"3"), NOW) is not None


def test_what_was_not_held_against_an_engine_is_not_taken_back_from_it() -> None:
    poison = Poison()
    poison.failed(failed("a"), NOW)
    assert poison.failed(failed("b"), NOW) == {}


def test_what_others_took_back_is_not_taken_back_again_the_newest_first() -> None:
    poison = Charging()
    for request in (b"one", b"two", b"three"):
        poison.failed(failed("a", request, peer="p"), NOW)
    poison.failed(failed("a", b"one", peer="q"), NOW + 1)
    poison.taken_back(("a", STATUS, "p", 0), 2)
    assert poison.failed(failed("b", b"three"), NOW + 2) == {}
    assert poison.failed(failed("b", b"two"), NOW + 2) == {}
    assert poison.failed(failed("b", b"one"), NOW + 2) == {("a", STATUS, "p", 0): 1, ("a", STATUS, "q", 0): 1}


@pytest.mark.parametrize("way", sorted(UNSENT))
def test_a_request_that_never_arrived_poisoned_nobody(way: str) -> None:
    poison = Charging()
    poison.failed(failed("a", way=way, failure=FailureClass.CONNECTION), NOW)
    assert poison.failed(failed("b", way=way, failure=FailureClass.CONNECTION), NOW) is None
    assert len(poison) == 0


def test_back_pressure_and_requests_of_our_own_are_not_remembered() -> None:
    poison = Charging()
    for iid in ("a", "b"):
        assert poison.failed(failed(iid, way="overload:429", failure=FailureClass.OVERLOAD), NOW) is None
        assert poison.failed(failed(iid, b""), NOW) is None
    assert len(poison) == 0


def test_what_was_no_transfers_matter_was_not_taken_back_by_others() -> None:
    poison = Charging()
    silent = {"way": "stream:silence", "failure": FailureClass.STREAM, "peer": "p"}
    poison.failed(failed("a", **silent), NOW)
    poison.taken_back(("a", FailureClass.STREAM, "p", 0), 1)
    assert poison.failed(failed("b", **silent), NOW) == {("a", FailureClass.STREAM, "p", 0): 1}


def test_what_is_charged_to_engines_is_bounded_and_the_oldest_is_forgotten() -> None:
    poison = Charging()
    poison.failed(failed("a", b"old", peer="p"), NOW)
    for _ in range(2 * MOST_CHARGES):
        poison.failed(failed("a", peer="p"), NOW)
    poison.check_invariants()
    assert poison.failed(failed("b", b"old"), NOW) == {}
    assert poison.failed(failed("b"), NOW) == {("a", STATUS, "p", 0): MOST_CHARGES}
    poison.check_invariants()


def test_a_request_that_is_forgotten_has_nothing_to_be_taken_back() -> None:
    poison = Charging()
    poison.failed(failed("a", b"old", peer="p"), NOW)
    poison.count_failed(CountFailed("a", FailureClass.TIMEOUT, "no answer", b"old"), NOW, row=0)
    poison.failed(failed("a", b"new", peer="p"), NOW + REMEMBERED_S)
    poison.check_invariants()
    poison.taken_back(("a", STATUS, "p", 0), 2)
    poison.check_invariants()
    assert poison.failed(failed("b", b"new"), NOW + REMEMBERED_S) == {}


class AnyOrder(RuleBasedStateMachine):
    """Whatever fails where and when: what engines are charged for is exactly what no suspect did."""

    def __init__(self) -> None:
        super().__init__()
        self.poison = Charging()
        self.now = NOW
        self.seen: dict[tuple[bytes, str], tuple[float, set[str]]] = {}
        self.charged: dict[tuple[bytes, str], int] = {}

    @rule(
        iid=st.sampled_from("abc"),
        request=st.sampled_from([b"r0", b"r1", b"r2"]),
        way=st.sampled_from(["inference_status:500", "stream:early_end"]),
    )
    def fails(self, iid: str, request: bytes, way: str) -> None:
        self.forget_old()
        key = (request, way)
        engines = self.seen.get(key, (0.0, set()))[1] | {iid}
        for other, (_, names) in tuple(self.seen.items()):
            if other[0] == request:
                self.seen[other] = (self.now, names)
        self.seen[key] = (self.now, engines)
        given_back = self.poison.failed(failed(iid, request, way), self.now)
        assert (given_back is not None) == (len(engines) > 1)
        if given_back is None:
            self.charged[key] = self.charged.get(key, 0) + 1
        else:
            assert sum(given_back.values()) == self.charged.pop(key, 0)
            assert all(name in engines for name, *_ in given_back)

    @rule(by_s=st.floats(0.1, 40.0))
    def waits(self, by_s: float) -> None:
        self.now += by_s

    def forget_old(self) -> None:
        for key, (at, _) in tuple(self.seen.items()):
            if at <= self.now - REMEMBERED_S:
                del self.seen[key]
                self.charged.pop(key, None)

    @invariant()
    def sound(self) -> None:
        self.poison.check_invariants()


TestAnyOrder = AnyOrder.TestCase
