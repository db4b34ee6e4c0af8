"""ports.Recorder: the journal's recorder and its in-memory twin take the same and lose nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from narwhal.clock import SystemClock
from narwhal.model.request import Outcome
from narwhal.ports import Recorder
from narwhal.telemetry.journal import Journal
from narwhal.telemetry.metrics import RouterMetrics
from narwhal.telemetry.recorder import JournalRecorder, MemoryRecorder
from tests.support.rows import finished_row

Taken = Callable[[], tuple[list[str], list[dict[str, Any]]]]
"""Ends the recorder: request IDs in order, events as kind and fields."""


@pytest.fixture(params=["journal", "memory"])
def recorder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Recorder, Taken]]:
    if request.param == "memory":
        twin = MemoryRecorder()
        yield (
            twin,
            lambda: (
                [row.rid for row, _ in twin.rows],
                [{"kind": kind, **fields} for kind, fields in twin.events],
            ),
        )
        return
    path = tmp_path / "j.jsonl"
    journal = Journal(str(path), run="r", meta={})
    journal.start()

    def taken() -> tuple[list[str], list[dict[str, Any]]]:
        journal.close()
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        events = [
            {key: value for key, value in row.items() if key not in ("at", "run")}
            for row in rows
            if row["kind"] not in ("meta", "request")
        ]
        return [row["rid"] for row in rows if row["kind"] == "request"], events

    yield JournalRecorder(journal, RouterMetrics(lambda: journal.stats), clock=SystemClock()), taken
    journal.close()


def test_every_request_is_taken_in_order(recorder: tuple[Recorder, Taken]) -> None:
    port, taken = recorder
    for n in range(1_200):
        port.request(finished_row(f"r{n}"), Outcome.SERVED)
    assert taken()[0] == [f"r{n}" for n in range(1_200)]


def test_events_keep_their_kind_and_fields(recorder: tuple[Recorder, Taken]) -> None:
    port, taken = recorder
    port.event("hold", {"iid": "e0", "reason": "stream"})
    port.event("ownership", {"epoch": 4})
    assert taken()[1] == [
        {"kind": "hold", "iid": "e0", "reason": "stream"},
        {"kind": "ownership", "epoch": 4},
    ]


def test_odd_values_raise_nothing(recorder: tuple[Recorder, Taken]) -> None:
    port, taken = recorder
    port.request(finished_row(error="\ud800", reason="x" * 100_000), Outcome.FAILED)
    port.event("odd", {"what": "\udfff", "number": float("nan")})
    rids, events = taken()
    assert rids == ["r1"]
    assert [event["kind"] for event in events] == ["odd"]


def test_journal_metrics_and_rows_agree(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "j.jsonl"), run="r", meta={})
    metrics = RouterMetrics(lambda: journal.stats)
    journal.start()
    port = JournalRecorder(journal, metrics, clock=SystemClock())
    for outcome in Outcome:
        port.request(finished_row(terminal=outcome.value), outcome)
    journal.close()
    rows = [json.loads(line) for line in (tmp_path / "j.jsonl").read_text().splitlines()]
    assert [row["terminal"] for row in rows if row["kind"] == "request"] == [
        outcome.value for outcome in Outcome
    ]
    text = metrics.render().decode()
    assert all(f'narwhal_requests_total{{outcome="{outcome.value}"}} 1.0' in text for outcome in Outcome)
    assert f"narwhal_journal_rows_total {len(Outcome)}.0" in text
