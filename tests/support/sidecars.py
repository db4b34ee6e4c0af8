"""Attestation sidecars as real processes, beside simulated engines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.engines import RemoteEngine
from tests.support.fleets import COMPLETE_CONTRACT
from tests.support.processes import Process, python
from tests.support.router import fleet_document

CONTRACT: dict[str, Any] = {
    **COMPLETE_CONTRACT,
    "connector": "NixlConnector",
    "enforce_handshake_compat": True,
}
"""What a complete fleet contract is with its defaults: a sidecar attests only what it names."""

_ATTESTS = re.compile(r"attests at (\S+): ")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """`url`: the document's full URL."""

    process: Process
    url: str


def attestation_file(folder: Path, contract: Mapping[str, Any] = CONTRACT) -> Path:
    """The document for `--document`, every field with a source."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "attestation.json"
    document = {
        "schema": "narwhal.attestation",
        "schema_version": 1,
        "contract": dict(contract),
        "sources": dict.fromkeys(contract, "the test"),
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def attest_command(engine: RemoteEngine, document: Path, *options: str) -> list[str]:
    words = ["--document", str(document), "--engine-base", engine.url, "--port", "0"]
    return python("narwhal.cli.attest", *words, *options)


@contextmanager
def contracted_fleet(
    engines: Sequence[RemoteEngine], folder: Path, *options: str, **sections: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], list[Sidecar]]]:
    """A fleet file with a complete contract, and a sidecar beside each of its engines."""
    document = fleet_document(engines, engine_contract=dict(CONTRACT), **sections)
    paper = attestation_file(folder)
    with ExitStack() as stack:
        processes = [Process(attest_command(engine, paper, *options)) for engine in engines]
        for process in processes:
            stack.callback(process.stop)
        sidecars = [Sidecar(process, _url_of(process)) for process in processes]
        for row, attested in zip(document["engines"], sidecars, strict=True):
            row["attestation_url"] = attested.url
        yield document, sidecars


@contextmanager
def sidecar(engine: RemoteEngine, document: Path, *options: str) -> Iterator[Sidecar]:
    """`narwhal-attest` on a free port, bound to the live engine."""
    process = Process(attest_command(engine, document, *options))
    try:
        yield Sidecar(process, _url_of(process))
    finally:
        process.stop()


def _url_of(process: Process) -> str:
    """Where it attests, once it has said so."""
    process.wait_for(lambda lines: any(_ATTESTS.search(line) for line in lines))
    (url,) = [match[1] for line in process.lines if (match := _ATTESTS.search(line))]
    return url
