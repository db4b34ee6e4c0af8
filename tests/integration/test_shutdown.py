"""What clients see of requests that outlive serving.graceful_timeout_s."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from tests.support.engines import engine_process
from tests.support.router import Router, fleet_document, router_process
from tests.support.wire import Answer, Wire, play

LONG = {"prompt": "go on", "max_tokens": 30_000}


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
