from __future__ import annotations

from typing import Any

import pytest

from narwhal.sim.faults import KINDS, FaultBook, FaultError, parse_fault, parse_faults


def kinds(book: FaultBook, leg: str) -> list[str]:
    return sorted(book.take(leg))


def test_a_fault_is_for_its_leg_and_its_number_of_requests() -> None:
    book = FaultBook()
    book.add(parse_fault({"fault": "hang", "leg": "decode", "count": 2}))
    assert [kinds(book, leg) for leg in ("prefill", "decode", "decode", "decode")] == [
        [],
        ["hang"],
        ["hang"],
        [],
    ]


def test_a_fault_can_be_for_the_requests_that_have_a_text() -> None:
    book = FaultBook()
    book.add(parse_fault({"fault": "hang", "match": "poison", "count": 1}))
    assert book.take("decode", b'{"prompt": "bread"}') == {}
    assert list(book.take("decode", b'{"prompt": "poison"}')) == ["hang"]
    assert book.take("decode", b'{"prompt": "poison"}') == {}


def test_without_a_count_it_stays_until_cleared() -> None:
    book = FaultBook()
    book.add(parse_fault({"fault": "crlf"}))
    assert [kinds(book, "prefill") for _ in range(3)] == [["crlf"]] * 3
    book.clear()
    assert kinds(book, "prefill") == []


def test_one_request_gets_one_of_each_kind_oldest_first() -> None:
    book = FaultBook()
    for status in (500, 503):
        book.add(parse_fault({"fault": "status", "status": status, "count": 1}))
    book.add(parse_fault({"fault": "cr", "count": 1}))
    assert {kind: fault.params.get("status") for kind, fault in book.take("decode").items()} == {
        "status": 500,
        "cr": None,
    }
    assert book.take("decode")["status"]["status"] == 503


def test_engine_wide_kinds_are_no_requests_fault() -> None:
    book = FaultBook()
    book.add(parse_fault({"fault": "refuse"}))
    assert kinds(book, "decode") == []
    assert [document["fault"] for document in book.documents()] == ["refuse"]


def test_a_broken_edge_is_one_producers() -> None:
    book = FaultBook()
    book.add(parse_fault({"fault": "edge", "port": 7, "how": "silent"}))
    book.add(parse_fault({"fault": "edge", "port": 8}))
    assert [book.edge(port) for port in (7, 8, 9)] == ["silent", "lost", ""]


def test_defaults_stand_for_what_is_left_out() -> None:
    assert parse_fault({"fault": "stall"}).params == {"after": 1, "seconds": None}
    assert parse_fault({"fault": "rst", "after": 3}).params == {"after": 3}


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (3, "must be an object"),
        ({}, "fault: None is not known"),
        ({"fault": "stal"}, "did you mean stall?"),
        ({"fault": "hang", "leg": "decod"}, "leg: 'decod' is not known (did you mean decode?)"),
        ({"fault": "hang", "count": 0}, "count: must be an integer of at least 1"),
        ({"fault": "hang", "count": True}, "count: must be an integer"),
        ({"fault": "slow"}, "slow.seconds: is required"),
        ({"fault": "slow", "seconds": "2"}, "slow.seconds: must be a number, not '2'"),
        ({"fault": "slow", "seconds": -1}, "slow.seconds: must be at least 0"),
        ({"fault": "slow", "seconds": 1, "secnds": 1}, "slow.secnds: 'secnds' is not known"),
        ({"fault": "status", "status": 200}, "status.status: must be at least 400"),
        ({"fault": "handoff", "variant": "no_hosts"}, "did you mean no_host?"),
        ({"fault": "refuse", "leg": "decode"}, "acts on the whole engine"),
        ({"fault": "refuse", "match": "x"}, "acts on the whole engine"),
        ({"fault": "hang", "match": 7}, "match: must be a string, not 7"),
        ({"fault": "process_start", "shift": 10**400}, "process_start.shift: must be a number"),
        ({"fault": "edge"}, "edge.port: is required"),
        ({"fault": "edge", "port": 1, "how": "gone"}, "edge.how: 'gone' is not known"),
        ({"fault": "stall", "after": 1.5}, "stall.after: must be an integer"),
    ],
)
def test_a_wrong_order_is_told_by_field_and_rule(order: Any, message: str) -> None:
    with pytest.raises(FaultError) as caught:
        parse_fault(order)
    assert message in str(caught.value)


def test_several_orders_come_all_or_not_at_all() -> None:
    assert [fault.kind for fault in parse_faults({"faults": [{"fault": "cr"}, {"fault": "hang"}]})] == [
        "cr",
        "hang",
    ]
    with pytest.raises(FaultError):
        parse_faults({"faults": [{"fault": "cr"}, {"fault": "nothing"}]})
    with pytest.raises(FaultError, match="must be a list"):
        parse_faults({"faults": {}})


def test_every_kind_says_what_it_does() -> None:
    assert all(kind.about for kind in KINDS.values())
