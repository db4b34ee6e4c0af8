"""What clients see of a clean shutdown: of requests in line, and of those that outlive graceful_timeout_s."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from tests.support.engines import engine_process
from tests.support.router import Router, fleet_document, router_process
from tests.support.wire import Answer, Wire, play, until

LONG = {"prompt": "go on", "max_tokens": 30_000}
SHORT = {"prompt": "go on", "max_tokens": 200}


async def cut(router: Router) -> tuple[Answer, Answer]:
    """A stream and a plain request that are under way when the router is told to end."""
    stream, plain = await Wire.open(router.url), await Wire.open(router.url)
    try:
        await plain.request("POST", "/v1/completions", body=LONG)
        await stream.request("POST", "/v1/completions", body={**LONG, "stream": True})
        begun = await stream.head()
        await stream.chunk(begun)
        router.process.send(signal.SIGTERM)
        return await asyncio.gather(stream.rest(begun), plain.answer())
    finally:
        stream.close()
        plain.close()


def test_what_is_cut_at_the_end_is_told_and_counted(tmp_path: Path) -> None:
    with engine_process(2, "--interval", "0.05") as engines:
        fleet = fleet_document(engines.engines)
        with router_process(tmp_path, fleet, "--graceful-timeout", "0") as router:
            streamed, plain = play(cut(router))
            assert router.process.ended() == 0
        engines.becomes_idle()
    assert streamed.complete
    assert streamed.documents[-1]["error"]["code"] == "standby"
    assert "[DONE]" not in streamed.events
    assert (plain.status, plain.headers["retry-after"]) == (503, "1")
    assert plain.error["code"] == "standby"
    rows = [row for row in router.journal() if row["kind"] == "request"]
    assert [row["terminal"] for row in rows] == ["failed", "failed"]
    assert "Traceback" not in router.process.output


async def sent_away(router: Router) -> tuple[list[Answer], Answer]:
    """One request has the only place, three stand in line when the router is told to end."""
    place = await Wire.open(router.url)
    line = [await Wire.open(router.url) for _ in range(3)]
    try:
        await place.request("POST", "/v1/completions", body={**SHORT, "stream": True})
        begun = await place.head()
        await place.chunk(begun)
        for wire in line:
            await wire.request("POST", "/v1/completions", body=SHORT)
        await until(lambda: bool(router.state()["admission"]["queued"] == len(line)))
        router.process.send(signal.SIGTERM)
        return [await wire.answer() for wire in line], await place.rest(begun)
    finally:
        for wire in (place, *line):
            wire.close()


def test_who_stands_in_line_is_sent_to_the_next_owner_and_what_runs_ends(tmp_path: Path) -> None:
    queue = {"queue_capacity": 8, "queue_timeout_s": 60}
    with engine_process(2, "--interval", "0.02") as engines:
        fleet = fleet_document(engines.engines, serving=queue)
        with router_process(tmp_path, fleet, "--max-concurrent", "1") as router:
            line, streamed = play(sent_away(router))
            assert router.process.ended() == 0
        engines.becomes_idle()
    assert [(answer.status, answer.error["code"]) for answer in line] == [(503, "standby")] * 3
    assert {answer.headers["retry-after"] for answer in line} == {"1"}
    assert streamed.events[-1] == "[DONE]", "what has its place runs to its end"
    rows = [row for row in router.journal() if row["kind"] == "request"]
    assert sorted(row["terminal"] for row in rows) == ["rejected"] * 3 + ["served"]
    assert all(row["queue_wait_s"] > 0 for row in rows if row["terminal"] == "rejected")
    assert "Traceback" not in router.process.output
