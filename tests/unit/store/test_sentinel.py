"""When a majority of the replicas is enough: a Sentinel beside each node, and no more."""

from __future__ import annotations

import pytest

from narwhal.store.sentinel import guarded


def rows(*addresses):
    return [{"ip": address} for address in addresses]


@pytest.mark.parametrize(
    ("nodes", "others", "enough"),
    [
        (("a", "b", "c"), ("b", "c"), True),
        (("a", "b", "c"), ("a", "c"), True),
        (("a", "b"), ("b",), True),
        (("h", "h", "h"), ("h", "h"), True),
        (("a", "b", "c"), ("b",), False),
        (("a", "b", "c"), ("b", "x"), False),
        (("a", "b"), ("b", "x"), False),
        (("a",), (), True),
    ],
)
def test_a_majority_is_enough_only_where_each_node_has_its_sentinel(nodes, others, enough):
    assert guarded(rows(*nodes), rows(*others)) is enough
