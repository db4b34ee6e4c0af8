"""Changes of ownership from several tellers become one list."""

from __future__ import annotations

from typing import Any

from narwhal.cli.cluster.changes import merged


def change(kind: str, epoch: int, router_id: str, *, at: float = 0.0, reason: str = "") -> dict[str, Any]:
    return {"kind": kind, "epoch": epoch, "router_id": router_id, "at": at, "reason": reason}


def test_one_change_told_twice_is_one_row_with_two_tellers() -> None:
    rows = merged([change("acquired", 7, "a", at=5.0)], {"http://b": [change("acquired", 7, "a", at=4.0)]})
    assert [(row["told_by"], row["at"]) for row in rows] == [(["log", "http://b"], 5.0)]


def test_a_reason_that_only_one_teller_knows_is_kept() -> None:
    told = {"http://a": [change("released", 7, "a", reason="yield")]}
    rows = merged([change("released", 7, "a")], told)
    assert rows[0]["reason"] == "yield"


def test_epochs_order_and_not_the_clocks_of_different_hosts() -> None:
    told = {
        "http://a": [change("acquired", 7, "a", at=100.0), change("released", 7, "a", at=101.0)],
        "http://b": [change("acquired", 8, "b", at=50.0)],
    }
    rows = merged([], told)
    assert [(row["kind"], row["epoch"]) for row in rows] == [
        ("acquired", 7),
        ("released", 7),
        ("acquired", 8),
    ]
