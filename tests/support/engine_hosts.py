"""Hosts of one engine and its sidecar each, as processes that are really stopped and started again."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.engines import RemoteEngine
from tests.support.ports import free_port
from tests.support.processes import Process, python
from tests.support.sidecars import CONTRACT, attestation_file

_UP = re.compile(r"\S+ http://\S+ http://\S+")
_ATTESTS = re.compile(r"attests at (\S+): ")


@dataclass
class EngineHost:
    """`narwhal simulate` and `narwhal-attest` of one engine, at ports that stay. Made stopped."""

    iid: str
    role: str
    folder: Path
    port: int = field(default_factory=free_port)
    side_port: int = field(default_factory=free_port)
    sidecar_port: int = field(default_factory=free_port)
    engine_process: Process | None = None
    sidecar_process: Process | None = None

    @property
    def engine(self) -> RemoteEngine:
        url, side_url = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.side_port}"
        return RemoteEngine(self.iid, url, side_url)

    @property
    def row(self) -> dict[str, Any]:
        """Of a fleet file."""
        attested = f"http://127.0.0.1:{self.sidecar_port}/v1/attestation"
        return {"iid": self.iid, "url": self.engine.url, "role": self.role, "attestation_url": attested}

    def begin_engine(self, *options: str) -> None:
        """Starts the process and does not wait until it answers."""
        ports = ("--port", str(self.port), "--side-port", str(self.side_port))
        speed = ("--prefill", "0", "--interval", "0.001", "--kv-lease", "2")
        command = python("narwhal.cli.simulate", "--names", self.iid, *ports, *speed, *options)
        self.engine_process = Process(command)

    def engine_is_up(self) -> None:
        assert self.engine_process is not None
        self.engine_process.wait_for(lambda lines: any(map(_UP.fullmatch, lines)))

    def begin_sidecar(self, **contract: Any) -> None:
        """Of the engine that runs now; `contract` is attested in place of the fleet's fields."""
        document = attestation_file(self.folder / self.iid, {**CONTRACT, **contract})
        words = ("--document", str(document), "--engine-base", self.engine.url)
        self.sidecar_process = Process(python("narwhal.cli.attest", *words, "--port", str(self.sidecar_port)))

    def sidecar_is_up(self) -> None:
        assert self.sidecar_process is not None
        self.sidecar_process.wait_for(lambda lines: any(map(_ATTESTS.search, lines)))

    def stop_engine(self) -> None:
        if self.engine_process is not None:
            self.engine_process.stop()
        self.engine_process = None

    def stop_sidecar(self) -> None:
        if self.sidecar_process is not None:
            self.sidecar_process.stop()
        self.sidecar_process = None

    def start(self, *options: str) -> None:
        """Engine, then sidecar: both answer."""
        self.begin_engine(*options)
        self.engine_is_up()
        self.begin_sidecar()
        self.sidecar_is_up()

    def stop(self) -> None:
        """As a supervisor does: what depends on the engine first."""
        self.stop_sidecar()
        self.stop_engine()

    def restart(self, *options: str) -> None:
        self.stop()
        self.start(*options)


def start_all(hosts: list[EngineHost]) -> None:
    """At once: one start after the other takes long on a busy machine."""
    for host in hosts:
        host.begin_engine()
    for host in hosts:
        host.engine_is_up()
        host.begin_sidecar()
    for host in hosts:
        host.sidecar_is_up()
