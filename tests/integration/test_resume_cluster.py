"""`narwhal-serve --resume` with a store whose only handoff is of a schema that this version does not know."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from narwhal.model.handoff import HANDOFF_SCHEMA
from tests.support.fleets import fleet_document, write_fleet
from tests.support.processes import Process, python
from tests.support.redis import on, running

DOCUMENT = json.dumps({"schema": HANDOFF_SCHEMA, "schema_version": 99}).encode()
STORED = {
    "epoch": "7",
    "seq": "1",
    "upto": "7-1",
    "at_ms": "1",
    "schema_version": "99",
    "document": DOCUMENT,
    "crc32": str(zlib.crc32(DOCUMENT)),
}


def test_an_unknown_schema_version_in_the_store_stops_a_resume_with_status_3(tmp_path: Path) -> None:
    with running(on("redis-6.2"), tmp_path / "store") as server:
        with server.client() as client:
            client.hset("narwhal:{demo}:handoff", mapping=STORED)
        url = f"redis://127.0.0.1:{server.port}"
        fleet = write_fleet(tmp_path, fleet_document())
        words = ("--fleet", fleet, "--port", "0", "--redis-url", url, "--cluster", "demo", "--resume")
        state = str(tmp_path / "state.json")
        process = Process(python("narwhal.cli.serve", "--state-path", state, *words))
        try:
            assert process.ended() == 3, process.output
        finally:
            process.kill()
    assert "stored handoff: schema_version must be 1, not 99" in process.output
    assert "Traceback" not in process.output
