"""Floor repair (control.md section 3)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from narwhal.model.engine import Role
from narwhal.model.role_control import DecisionWord
from narwhal.policy.roles import EngineSight, RoleControl
from tests.support.settings import controller_settings

P, D = Role.PREFILL, Role.DECODE
KEEP, MOVE, PROPOSE, REFUSE = DecisionWord.KEEP, DecisionWord.MOVE, DecisionWord.PROPOSE, DecisionWord.REFUSE
NOW = 50.0


def sight(iid: str, *, resident: int = 0, pinned: bool = False) -> EngineSight:
    """An eligible engine of the role that its first letter names."""
    role = P if iid[0] == "p" else D
    return EngineSight(iid, role, pinned=pinned, eligible=True, unverified=False, resident=resident)


def out(one: EngineSight) -> EngineSight:
    """On hold, drained or ejected."""
    return replace(one, eligible=False)


def unverified(one: EngineSight) -> EngineSight:
    return replace(one, eligible=False, unverified=True)


def decide(*sights: EngineSight, advisory: bool = False, floors: tuple[int, int] = (1, 1)):
    settings = controller_settings(advisory=advisory, min_prefill=floors[0], min_decode=floors[1])
    decision = RoleControl(settings).decide(sights, NOW)
    return decision.word, decision.iid, decision.role


def test_roles_at_their_floor_keep() -> None:
    assert decide(sight("p0"), sight("d0")) == (KEEP, "", None)


def test_a_role_without_its_floor_gets_the_engine_with_the_fewest_resident_legs() -> None:
    donors = (sight("d0", resident=3), sight("d1", resident=1), sight("d2", resident=1))
    assert decide(out(sight("p0")), *donors) == (MOVE, "d1", P)


def test_decode_is_repaired_from_prefill() -> None:
    assert decide(sight("p0"), sight("p1"), out(sight("d0"))) == (MOVE, "p0", D)


def test_one_engine_moves_a_pass() -> None:
    control = RoleControl(controller_settings(min_prefill=2))
    sights = [out(sight("p0")), out(sight("p1")), sight("d0"), sight("d1"), sight("d2")]
    first = control.decide(sights, NOW)
    assert (first.word, first.iid) == (MOVE, "d0")
    sights[2] = replace(sights[2], role=P)
    second = control.decide(sights, NOW + 1)
    assert (second.word, second.iid) == (MOVE, "d1")
    sights[3] = replace(sights[3], role=P)
    assert control.decide(sights, NOW + 2).word is KEEP
    assert [flip.iid for flip in control.flips] == ["d0", "d1"]


def test_the_donors_role_keeps_its_own_floor() -> None:
    assert decide(out(sight("p0")), sight("d0")) == (REFUSE, "", None)
    assert decide(out(sight("p0")), sight("d0"), sight("d1"), floors=(1, 2)) == (REFUSE, "", None)
    assert decide(out(sight("p0")), sight("d0"), out(sight("d1"))) == (REFUSE, "", None)


def test_pinned_engines_and_engines_that_are_out_never_move() -> None:
    pinned = sight("d0", pinned=True)
    assert decide(out(sight("p0")), pinned, sight("d1", resident=9)) == (MOVE, "d1", P)
    assert decide(out(sight("p0")), pinned, sight("d1", pinned=True)) == (REFUSE, "", None)
    assert decide(out(sight("p0")), out(sight("d0")), sight("d1"), sight("d2")) == (MOVE, "d1", P)


def test_an_engine_that_owes_a_check_after_a_takeover_is_neither_missing_nor_a_donor() -> None:
    assert decide(unverified(sight("p0")), sight("d0"), sight("d1")) == (KEEP, "", None)
    assert decide(out(sight("p0")), sight("d0"), unverified(sight("d1"))) == (REFUSE, "", None)


def test_a_fleet_of_one_engine_has_no_floors_to_keep() -> None:
    assert decide(sight("d0")) == (KEEP, "", None)
    assert decide(out(sight("p0"))) == (KEEP, "", None)


def test_advisory_proposes_and_moves_nothing() -> None:
    control = RoleControl(controller_settings(advisory=True))
    sights = (out(sight("p0")), sight("d0"), sight("d1"))
    for number in range(3):
        decision = control.decide(sights, NOW + number)
        assert (decision.word, decision.iid, decision.role) == (PROPOSE, "d0", P)
    assert len(control.flips) == 1, "a proposal that stands is kept once"


def test_a_proposal_stands_though_another_engine_has_the_fewest_legs_now() -> None:
    control = RoleControl(controller_settings(advisory=True))
    for number in range(6):
        sights = (out(sight("p0")), sight("d0", resident=number % 2), sight("d1", resident=1 - number % 2))
        control.decide(sights, NOW + number)
    assert len(control.flips) == 1


def test_a_move_is_never_a_repetition() -> None:
    """The engine that was moved may be out a moment later: the next one goes for the same reason."""
    control = RoleControl(controller_settings())
    first = control.decide((out(sight("p0")), sight("d0"), sight("d1"), sight("d2")), NOW)
    moved = replace(sight("d0"), role=P, eligible=False)
    second = control.decide((out(sight("p0")), moved, sight("d1"), sight("d2")), NOW + 1)
    assert first.reason == second.reason
    assert [flip.iid for flip in control.flips] == ["d0", "d1"]


def test_a_refusal_says_why_and_is_kept_once() -> None:
    control = RoleControl(controller_settings())
    for number in range(3):
        control.decide((out(sight("p0")), sight("d0")), NOW + number)
    (refusal,) = control.refused
    assert refusal.reason == "0 eligible prefill engines, the floor is 1, and no decode engine can be spared"
    assert refusal.numbers == {"eligible_prefill": 0, "eligible_decode": 1, "min_prefill": 1, "min_decode": 1}
    control.decide((sight("p0"), sight("d0")), NOW + 3)
    control.decide((out(sight("p0")), sight("d0")), NOW + 4)
    assert len(control.refused) == 2


def test_the_history_is_bounded_by_flip_history() -> None:
    control = RoleControl(controller_settings(flip_history=3))
    for number in range(9):
        control.decide((out(sight("p0")), sight(f"d{number}"), sight("d9", resident=5)), NOW)
    assert [flip.iid for flip in control.flips] == ["d6", "d7", "d8"]


ENGINES = st.lists(
    st.tuples(st.sampled_from((P, D)), st.booleans(), st.booleans(), st.integers(0, 3)), max_size=8
)


@given(rows=ENGINES, floors=st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_repair_ends_and_takes_no_role_below_its_floor(
    rows: list[tuple[Role, bool, bool, int]], floors: tuple[int, int]
) -> None:
    control = RoleControl(controller_settings(min_prefill=floors[0], min_decode=floors[1]))
    sights = {
        f"e{n}": EngineSight(f"e{n}", role, pinned=pin, eligible=sound, unverified=False, resident=work)
        for n, (role, pin, sound, work) in enumerate(rows)
    }

    def count(role: Role) -> int:
        return sum(one.role is role and one.eligible for one in sights.values())

    for _ in range(len(rows) + 1):
        before = {role: count(role) for role in Role}
        decision = control.decide(tuple(sights.values()), NOW)
        if decision.word is not MOVE:
            break
        moved = sights[decision.iid]
        assert moved.eligible and not moved.pinned and decision.role is moved.role.other
        sights[decision.iid] = replace(moved, role=moved.role.other)
        floor = floors[0] if moved.role is P else floors[1]
        assert count(moved.role) == before[moved.role] - 1 >= floor
    else:
        raise AssertionError("repair goes on for ever")
