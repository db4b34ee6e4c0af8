"""What producers hold for others: from the prefill's end to the first token, or to the end of the lease."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from narwhal.policy.kv_ledger import LEASE_S, MOST, Held, KvLedger, lease_s, too_old

NOW = 100.0


def ledger() -> KvLedger:
    return KvLedger(("p0", "p1"), lease_s=LEASE_S)


def charge(ledger: KvLedger, ticket: int, iid: str = "p0", tokens: int = 100, now: float = NOW) -> None:
    ledger.charge(ticket, iid, tokens=tokens, work=tokens / 1000, since=now)


def test_a_handoff_is_held_from_the_end_of_its_prefill_to_the_first_token_of_its_decode() -> None:
    kv = ledger()
    charge(kv, 1)
    charge(kv, 2, tokens=50)
    charge(kv, 3, "p1")
    assert kv.by_engine == {"p0": Held(2, 150, pytest.approx(0.15)), "p1": Held(1, 100, 0.1)}
    assert (kv.release(1), kv.release(2)) == ("p0", "p0")
    assert kv.by_engine["p0"] == Held()


def test_released_twice_or_never_held_changes_nothing() -> None:
    kv = ledger()
    charge(kv, 1)
    assert [kv.release(ticket) for ticket in (7, 1, 1)] == ["", "p0", ""]
    assert kv.by_engine["p0"] == Held()
    kv.check_invariants()


def test_nobody_came_for_the_blocks_before_the_lease_ended() -> None:
    kv = ledger()
    charge(kv, 1)
    charge(kv, 2, now=NOW + 1)
    assert kv.next_end() == NOW + LEASE_S
    assert kv.expire(NOW + LEASE_S - 0.1) == ()
    assert kv.expire(NOW + LEASE_S) == ("p0",)
    assert kv.by_engine["p0"] == Held(1, 100, pytest.approx(0.1), orphaned=1)
    assert kv.release(1) == "", "a token that comes later finds nothing"
    assert kv.expire(NOW + 99) == ("p0",)
    assert kv.by_engine["p0"] == Held(orphaned=2)
    assert kv.next_end() == inf


@pytest.mark.parametrize(("timeout_s", "lease"), [(25.0, 30.0), (5.0, 30.0), (50.0, 60.0)])
def test_a_handoff_timeout_above_the_default_tells_of_a_longer_lease(timeout_s: float, lease: float) -> None:
    assert lease_s(timeout_s) == pytest.approx(lease)


@pytest.mark.parametrize(
    ("since", "now", "old"),
    [
        (100.0, 100.0, False),
        (100.0, 125.0, False),
        (100.0, 125.001, True),
        (100.0, 130.0, True),
        (100.0, 150.0, True),
        (-inf, 0.0, True),
    ],
)
def test_a_handoff_is_good_for_its_bound_from_its_prefills_end(since: float, now: float, old: bool) -> None:
    assert too_old(since, now, bound_s=25.0) is old


def test_prefills_told_of_out_of_order_end_in_the_order_of_their_leases() -> None:
    """The answer of one lay in a socket while others were read."""
    kv = ledger()
    charge(kv, 1, now=NOW)
    charge(kv, 2, now=NOW + 2)
    charge(kv, 3, "p1", now=NOW + 1)
    charge(kv, 4, now=NOW - 1)
    charge(kv, 5, "p1", now=NOW - 40)
    kv.check_invariants()
    assert kv.next_end() == NOW - 10
    assert [kv.expire(NOW + at) for at in (0, 29, 30, 31, 32)] == [
        ("p1",),
        ("p0",),
        ("p0",),
        ("p1",),
        ("p0",),
    ]
    assert [held.orphaned for held in kv.by_engine.values()] == [3, 2]


def test_memory_is_bounded() -> None:
    kv = ledger()
    for ticket in range(1, MOST + 3):
        charge(kv, ticket, tokens=1)
    assert kv.by_engine["p0"].handoffs == MOST
    assert (kv.release(1), kv.release(3)) == ("", "p0")
    kv.check_invariants()


# --- what travels ---


def test_held_handoffs_travel_with_remaining_seconds_those_that_end_together_as_one() -> None:
    kv = ledger()
    for ticket, at in enumerate((0.0, -0.5, 12.0), start=1):
        charge(kv, ticket, now=NOW + at)
    charge(kv, 4, "p1", tokens=7, now=NOW + 12)
    assert kv.export(NOW + 12) == {
        "p0": [
            {"handoffs": 2, "tokens": 200, "work": 0.2, "remaining_s": 18.0},
            {"handoffs": 1, "tokens": 100, "work": 0.1, "remaining_s": 30.0},
        ],
        "p1": [{"handoffs": 1, "tokens": 7, "work": 0.007, "remaining_s": 30.0}],
    }
    kv.release(3)
    assert [row["handoffs"] for row in kv.export(NOW + 13)["p0"]] == [2]
    assert kv.export(NOW + 45) == {}


def test_a_receiver_counts_them_on_its_own_clock_and_none_as_orphaned() -> None:
    kv = ledger()
    kv.restore({"p0": [{"handoffs": 2, "tokens": 200, "work": 0.2, "remaining_s": 18.5}]}, 5.0)
    kv.check_invariants()
    assert kv.by_engine["p0"] == Held(2, 200, 0.2)
    assert kv.export(5.0)["p0"][0]["remaining_s"] == 18.5, "no hop makes it longer"
    assert kv.expire(23.4) == ()
    assert kv.expire(23.5) == ("p0",)
    assert kv.by_engine["p0"] == Held()


def test_what_a_document_told_of_counts_once_when_it_comes_back() -> None:
    """From here to another owner, and back within the lease."""
    here, there = ledger(), ledger()
    charge(here, 1)
    charge(here, 2)
    there.restore(here.export(NOW), 5000.0)
    charge(there, 1, now=5001.0)
    here.restore(there.export(5002.0), NOW + 2)
    here.check_invariants()
    assert here.by_engine["p0"].handoffs == 3
    assert here.release(1) == "", "a stream of before that begins now: its row lasts to its end"
    assert here.expire(NOW + LEASE_S) == ("p0",)
    assert here.by_engine["p0"] == Held(1, 100, pytest.approx(0.1)), "and nobody counts them as orphaned"


def test_kv_that_is_decoded_where_it_lies_is_held_and_never_orphaned() -> None:
    kv = ledger()
    charge(kv, 1)
    kv.stays(1)
    kv.stays(7)
    assert kv.by_engine["p0"].handoffs == 1
    assert kv.expire(NOW + LEASE_S) == ("p0",)
    assert kv.by_engine["p0"] == Held()


def test_a_restore_replaces_what_was_told_before_and_leaves_own_handoffs() -> None:
    kv = ledger()
    charge(kv, 1)
    for handoffs in (5, 2):
        told = {"p0": [{"handoffs": handoffs, "tokens": 10, "work": 0, "remaining_s": 10}]}
        kv.restore(told, NOW)
    kv.check_invariants()
    assert kv.by_engine["p0"].handoffs == 3
    assert kv.next_end() == NOW + 10
    assert kv.release(1) == "p0"
    assert kv.expire(NOW + 50) == ("p0",)


def test_no_lease_is_longer_than_ours() -> None:
    kv = ledger()
    kv.restore({"p0": [{"handoffs": 1, "tokens": 1, "work": 0, "remaining_s": 1e9}]}, NOW)
    assert kv.next_end() == NOW + LEASE_S


ROW = {"handoffs": 1, "tokens": 1, "work": 0.0, "remaining_s": 1.0}


@pytest.mark.parametrize(
    "told",
    [
        None,
        [ROW],
        {"x": [ROW]},
        {"p0": ROW},
        {"p0": ["row", 7, None]},
        {"p0": [{**ROW, "handoffs": -1}, {**ROW, "tokens": "1"}, {**ROW, "work": float("nan")}]},
        {"p0": [{**ROW, "remaining_s": 0}, {**ROW, "remaining_s": float("inf")}, {**ROW, "handoffs": True}]},
    ],
)
def test_what_cannot_be_read_is_left_out(told: object) -> None:
    kv = ledger()
    kv.restore(told, NOW)
    kv.check_invariants()
    assert kv.next_end() == inf


def ends(kv: KvLedger, now: float) -> list[float]:
    return [row["remaining_s"] for rows in kv.export(now).values() for row in rows]


class AnyOrder(RuleBasedStateMachine):
    """Whatever comes: the sums are those of what is held, never negative, and everything ends."""

    tickets: Bundle[int] = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.kv = ledger()
        self.now = NOW
        self.last = 0
        self.held: dict[int, tuple[str, float]] = {}

    @rule(
        target=tickets,
        iid=st.sampled_from(["p0", "p1"]),
        tokens=st.integers(0, 10**6),
        age_s=st.sampled_from([0.0, 0.0, 0.1, 7.0, 29.0]),
    )
    def charged(self, iid: str, tokens: int, age_s: float) -> int:
        self.last += 1
        since = self.now - age_s
        self.kv.charge(self.last, iid, tokens=tokens, work=tokens / 7, since=since)
        self.held[self.last] = (iid, since + LEASE_S)
        return self.last

    @rule(ticket=tickets)
    def released(self, ticket: int) -> None:
        iid, _ = self.held.pop(ticket, ("", 0.0))
        assert self.kv.release(ticket) == iid

    @rule(by_s=st.floats(0.0, 20.0))
    def waits(self, by_s: float) -> None:
        self.now += by_s
        orphaned = sum(held.orphaned for held in self.kv.by_engine.values())
        self.kv.expire(self.now)
        over = [ticket for ticket, (_, until) in self.held.items() if until <= self.now]
        for ticket in over:
            del self.held[ticket]
        assert sum(held.orphaned for held in self.kv.by_engine.values()) == orphaned + len(over)

    @rule()
    def travels(self) -> None:
        """To a successor: as many handoffs, tokens and work there, and none lasts longer than here."""
        successor = ledger()
        successor.restore(self.kv.export(self.now), self.now)
        again = ledger()
        again.restore(successor.export(self.now), self.now)
        latest = [max(ends(kv, self.now), default=0.0) for kv in (successor, again)]
        assert latest[1] <= latest[0] + 0.01, "no hop makes it longer"
        for iid, held in self.kv.by_engine.items():
            other = successor.by_engine[iid]
            assert (other.handoffs, other.tokens) == (held.handoffs, held.tokens)
            assert other.work == pytest.approx(held.work, abs=1e-3)
        successor.expire(self.now + LEASE_S)
        assert successor.next_end() == inf

    @invariant()
    def sound(self) -> None:
        self.kv.check_invariants()
        for iid, held in self.kv.by_engine.items():
            assert held.handoffs == sum(1 for owner, _ in self.held.values() if owner == iid)


TestAnyOrder = AnyOrder.TestCase
