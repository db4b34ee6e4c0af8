"""When a majority of the replicas is enough: a Sentinel beside each node, and no more."""

from __future__ import annotations

import pytest

from narwhal.errors import StoreProtocolError
from narwhal.store.sentinel import down_after_risk, guarded, read

MASTER = {"ip": "10.0.0.1", "port": "6379", "config-epoch": "3"}


def rows(*addresses):
    return [{"ip": address} for address in addresses]


def row(fields):
    return [word.encode() for pair in fields.items() for word in pair]


@pytest.mark.parametrize(
    ("nodes", "door", "others", "enough"),
    [
        (("a", "b", "c"), "a", ("b", "c"), True),
        (("a", "b", "c"), "b", ("a", "c"), True),
        (("a", "b"), "a", ("b",), True),
        (("h", "h", "h"), "h", ("h", "h"), True),
        (("a", "b", "c"), "a", ("b",), False),
        (("a", "b", "c"), "a", ("b", "x"), False),
        (("a", "b", "c"), "a", ("a", "b"), False),  # c has none
        (("a", "b", "c"), "x", ("a", "b"), False),
        (("a", "b"), "a", ("b", "x"), False),
        (("a",), "a", (), True),
    ],
)
def test_a_majority_is_enough_only_where_each_node_has_its_sentinel(nodes, door, others, enough):
    assert guarded(rows(*nodes), rows(*others), door=door) is enough


def test_a_sentinel_is_read():
    told = read([row(MASTER), [row({"ip": "10.0.0.2"})], [row({"ip": "10.0.0.2"})]], door="10.0.0.1")
    assert (told.config_epoch, told.host, told.port, told.guarded) == (3, "10.0.0.1", 6379, True)


@pytest.mark.parametrize(
    ("told_ms", "named"),
    [
        ([1000, 1500, 1200], ""),
        ([], ""),
        ([0], ""),  # not told
        ([999], "999 ms"),
        ([1501], "1501 ms"),
        ([1000, 30000, 30000, 300], "300 or 30000 ms"),
    ],
)
def test_a_sentinel_that_waits_too_short_or_too_long_is_told(told_ms, named):
    sentences = down_after_risk("main", told_ms)
    assert len(sentences) == bool(named)
    assert all(f" after {named}:" in one and "1000 to 1500" in one for one in sentences)


def test_how_long_a_sentinel_waits_is_read():
    told = read([row(MASTER | {"down-after-milliseconds": "30000"}), [], []], door="10.0.0.1")
    assert told.down_after_ms == 30000


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(row({"port": "6379"}), id="no ip"),
        pytest.param(row({"ip": "10.0.0.1"}), id="no port"),
        pytest.param(row(MASTER | {"port": "many"}), id="a port of words"),
        pytest.param(row(MASTER | {"config-epoch": "x"}), id="a config epoch of words"),
        pytest.param(row(MASTER)[:-1], id="odd fields"),
        pytest.param([b"\xff", b"1"], id="not UTF-8"),
        pytest.param(None, id="nothing"),
        pytest.param([1, 2], id="numbers"),
    ],
)
def test_an_answer_that_cannot_be_read_is_an_error_of_the_store(answer):
    with pytest.raises(StoreProtocolError, match="Sentinel"):
        read([answer, [], []], door="10.0.0.1")
