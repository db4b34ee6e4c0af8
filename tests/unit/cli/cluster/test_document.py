"""The records as a document, and the document as a table."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from narwhal.cli.cluster.document import cluster_document
from narwhal.cli.cluster.tables import history_view, seconds, status_view
from narwhal.model.handoff import EntryKind, LogEntry, LogPosition
from narwhal.model.lease import Incarnation, LeaseState, LeaseVersion, LeaseView
from narwhal.model.request import Counters
from narwhal.model.store_call import RouterEntry
from narwhal.runtime.records import ClusterRecords, ServerFacts

TOKEN = "5f" * 16
NOW_MS = 1_700_000_100_000
HELD = LeaseView(
    inc=Incarnation("a" * 40, "b" * 40),
    role="master",
    state=LeaseState.HELD,
    version=LeaseVersion(TOKEN, 12),
    epoch=7,
    epoch_key=7,
    owner="a:1",
    url="http://a:1",
    ttl_ms=5000,
    acquired_ms=NOW_MS - 90_000,
    renewed_ms=NOW_MS - 400,
    now_ms=NOW_MS,
    fields={"control_url": "http://a:9", "host": "a", "pid": "41", "version": "0.1", "token": TOKEN},
)
STANDBY = RouterEntry(
    "b:1", "run-b", "standby", "http://b:1", mirror_age_s=0.1, ready_to_take=True, seen_ms=NOW_MS - 1500
)
OWNER = RouterEntry("a:1", "run-a", "active", "http://a:1", seen_ms=NOW_MS - 500)
RECORDS = ClusterRecords(
    cluster="demo",
    lease=HELD,
    routers=(STANDBY, OWNER),
    claims={"b:1": '{"epoch": 7, "reason": "monitoring degraded"}'},
    totals={"run-a": Counters(served=3, offered=4, failed=1), "run-0": Counters(served=2, offered=2)},
    changes=(LogEntry(LogPosition(7, 1), EntryKind.ACQUIRED, {"owner": "a:1", "at_ms": NOW_MS - 90_000}),),
    server=ServerFacts("standalone", {"redis_version": "7.0.15", "aof_enabled": "1"}, ("beware",), 0.2),
)


def shown(view: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    console.print(view)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return str(text)


def with_lease(**changes: Any) -> ClusterRecords:
    return replace(RECORDS, lease=replace(HELD, **changes))


def test_the_document_is_the_routers_own_with_more_beside_it() -> None:
    document = cluster_document(RECORDS)
    assert (document["schema"], document["schema_version"]) == ("narwhal.cluster", 1)
    lease = {"state", "holder", "router_id", "url", "epoch", "seq", "ttl_s", "valid_for_s"}
    assert lease <= set(document["lease"])
    router = {
        *("router_id", "url", "role", "epoch", "mirror_age_s", "version", "ready_to_take", "drift", "seen_s"),
    }
    assert all(router <= set(row) for row in document["routers"])
    assert {"mode", "latency_ms", "failures"} <= set(document["store"])


def test_ages_are_by_the_clock_of_the_store() -> None:
    document = cluster_document(RECORDS)
    assert document["lease"]["renewed_age_s"] == 0.4
    assert document["lease"]["acquired_age_s"] == 90.0
    assert [row["seen_s"] for row in document["routers"]] == [0.5, 1.5]


def test_totals_are_summed_over_runs() -> None:
    document = cluster_document(RECORDS)
    assert (document["runs"], document["totals"]["served"], document["totals"]["offered"]) == (2, 5, 6)


def test_the_token_is_never_shown() -> None:
    document = cluster_document(RECORDS)
    assert TOKEN not in str(document)
    assert TOKEN not in shown(status_view(document))
    assert document["lease"]["holder"].startswith("a:1:") and len(document["lease"]["holder"]) == 20


def test_the_table_says_who_owns_and_who_could() -> None:
    text = shown(status_view(cluster_document(RECORDS)))
    for words in ("demo", "a:1  http://a:1 on a (pid 41)", "0.40 s ago", "monitoring degraded", "beware"):
        assert words in text
    assert "standby" in text and "append-only yes" in text


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (with_lease(renewed_ms=NOW_MS - 9000), "held, but not renewed for 9.00 s"),
        (with_lease(state=LeaseState.RELEASED, reason="yield", successor="b:1"), "released: yield, for b:1"),
        (with_lease(state=LeaseState.VACANT, owner=""), "vacant"),
        (with_lease(state=None, version=None, owner="", fields=None), "nothing is stored"),
    ],
)
def test_a_lease_that_nobody_renews_is_told_as_what_it_is(records: ClusterRecords, words: str) -> None:
    assert words in shown(status_view(cluster_document(records)))


def test_a_claim_that_cannot_be_read_is_shown_as_it_is() -> None:
    document = cluster_document(replace(RECORDS, claims={"b:1": "scrawl"}))
    assert document["claims"] == [{"router_id": "b:1", "epoch": None, "reason": "scrawl"}]


@pytest.mark.parametrize("claim", ["[" * 100_000, "7", '{"epoch": NaN'])
def test_no_claim_ends_the_command(claim: str) -> None:
    assert claim[:7] in shown(status_view(cluster_document(replace(RECORDS, claims={"b:1": claim}))))


def test_nothing_that_is_stored_steers_a_terminal() -> None:
    odd = "\x1b[2J"
    told = {"owner": odd, "reason": odd, "successor": odd, "at_ms": NOW_MS}
    changes = (LogEntry(LogPosition(7, 1), EntryKind.RELEASED, told),)
    claims = {odd: json.dumps({"epoch": odd, "reason": odd}), "b:1": odd}
    records = with_lease(owner=odd, url=odd, reason=odd, successor=odd, fields={"host": odd, "version": odd})
    document = cluster_document(replace(records, changes=changes, claims=claims))
    assert [claim["epoch"] for claim in document["claims"]] == [None, None]
    assert json.dumps(document, ensure_ascii=False).isprintable()
    assert "\\x1b[2J" in document["lease"]["reason"]


@pytest.mark.parametrize("at_ms", [None, "soon", -1, 2**60, 10**400, 2**53])
def test_a_time_that_no_router_wrote_ends_no_command(at_ms: Any) -> None:
    entry = LogEntry(LogPosition(7, 1), EntryKind.ACQUIRED, {"owner": "a:1", "at_ms": at_ms})
    changes = cluster_document(replace(RECORDS, changes=(entry,)))["ownership_changes"]
    assert "? " in shown(history_view([{**one, "told_by": ["log"]} for one in changes]))


def test_a_pid_that_no_router_wrote_is_unknown() -> None:
    records = with_lease(fields={**(HELD.fields or {}), "pid": "many"})
    assert cluster_document(records)["lease"]["pid"] == 0


def test_a_history_without_changes_says_so() -> None:
    assert "no change of ownership" in shown(history_view([]))


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "-"), (0.42, "0.42 s"), (61, "61.0 s"), (302, "5 min 02 s"), (11_520, "3 h 12 min"),
     (356_400, "4 d 03 h")],
)  # fmt: skip
def test_ages_are_told_in_words_for_people(value: float | None, words: str) -> None:
    assert seconds(value) == words
