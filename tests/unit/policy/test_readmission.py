"""policy/readmission.py: with whom an engine proves its KV transfers."""

from __future__ import annotations

from narwhal.model.engine import Role
from narwhal.policy.readmission import MOST_PEERS, TransferPeers, transfer_peers

P, D = Role.PREFILL, Role.DECODE
ROLES = {"p0": P, "p1": P, "d0": D, "d1": D}
EVERYONE = tuple(ROLES)
ALL_PINNED = frozenset(ROLES)


def peers(
    iid: str, *, pinned: frozenset[str] = ALL_PINNED, live: tuple[str, ...] = EVERYONE
) -> TransferPeers:
    return transfer_peers(iid, ROLES, pinned=pinned, live=live)


def test_a_pinned_prefill_engine_produces_to_decode_engines() -> None:
    assert peers("p0") == TransferPeers(produces_to=("d0", "d1"))


def test_a_pinned_decode_engine_consumes_from_prefill_engines() -> None:
    assert peers("d1") == TransferPeers(consumes_from=("p0", "p1"))


def test_an_unpinned_engine_owes_both_directions() -> None:
    pinned = ALL_PINNED - {"d0"}
    assert peers("d0", pinned=pinned) == TransferPeers(produces_to=("d1",), consumes_from=("p0", "p1"))


def test_unpinned_peers_of_the_other_role_stand_in_where_nobody_of_the_role_lives() -> None:
    """They would pass an engine that can pull from no prefill engine at all."""
    alone = frozenset({"p0"})
    assert peers("p0", pinned=alone).produces_to == ("d0", "d1")
    assert peers("p0", pinned=alone, live=("p0", "p1")).produces_to == ("p1",)
    assert peers("p0", pinned=alone | {"p1"}, live=("p0", "p1")).produces_to == ()


def test_only_live_peers_take_part_and_never_the_engine_itself() -> None:
    assert peers("p0", live=("p0", "d1")) == TransferPeers(produces_to=("d1",))
    assert peers("p0", live=()) == TransferPeers()


def test_at_most_four_peers_a_direction() -> None:
    roles = {"p0": P} | {f"d{number}": D for number in range(9)}
    found = transfer_peers("p0", roles, pinned=set(roles), live=tuple(roles))
    assert found.produces_to == ("d0", "d1", "d2", "d3")
    assert len(found.produces_to) == MOST_PEERS
