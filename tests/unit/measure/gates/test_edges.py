"""Over which edges KV is handed in a check."""

from __future__ import annotations

import pytest

from narwhal.measure.gates.edges import Edge, edges_of
from narwhal.model.engine import EngineSpec, Role


def fleet(roles: str) -> list[EngineSpec]:
    """`p` and `d` for the roles, in capitals where pinned."""
    names = {"p": Role.PREFILL, "d": Role.DECODE}
    return [
        EngineSpec(f"e{index}", f"http://e{index}", names[letter.lower()], pin=letter.isupper())
        for index, letter in enumerate(roles)
    ]


@pytest.mark.parametrize(
    ("roles", "edges"),
    [
        ("pd", [("e0", "e1")]),
        ("pddd", [("e0", "e1"), ("e0", "e2"), ("e0", "e3")]),
        ("pppd", [("e0", "e3"), ("e1", "e3"), ("e2", "e3")]),
        ("ppddd", [("e0", "e2"), ("e1", "e3"), ("e0", "e4")]),
        ("p", []),
        ("PP", []),
        ("ddd", [("e0", "e1"), ("e1", "e2"), ("e2", "e0")]),
        ("PDd", [("e0", "e1"), ("e0", "e2")]),
    ],
)
def test_every_producer_and_every_consumer_is_tried(roles: str, edges: list[Edge]) -> None:
    assert edges_of(fleet(roles), ring=False) == edges


@pytest.mark.parametrize(
    ("roles", "edges"),
    [
        ("pdd", [("e0", "e1"), ("e1", "e2"), ("e2", "e0")]),
        ("pd", [("e0", "e1"), ("e1", "e0")]),
        ("PDd", [("e0", "e1")]),
        ("p", []),
    ],
)
def test_a_ring_goes_round_as_far_as_pins_permit(roles: str, edges: list[Edge]) -> None:
    assert edges_of(fleet(roles), ring=True) == edges
