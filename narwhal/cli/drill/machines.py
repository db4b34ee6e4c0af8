"""The processes of a drill: servers of the store, routers with or without a warden, the load balancer."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
from redis import exceptions as driver
from redis.asyncio import Redis

from narwhal.cli.demo.machines import Machine, Site, free_port

START_S: Final = 60.0
DOCUMENT_S: Final = 5.0


async def until(
    holds: Callable[[], Awaitable[bool]],
    *,
    what: str,
    within_s: float = START_S,
    machine: Machine | None = None,
) -> None:
    """Polls until it holds. Raises StartFailed when the machine ends first, TimeoutError."""
    try:
        async with asyncio.timeout(within_s):
            while not await holds():
                if machine is not None and not machine.running:
                    raise machine.failed(f"ended before: {what}")
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise TimeoutError(f"{what}: not within {within_s:g} s") from None


class StoreMachine:
    """One server of the store, with an append-only file, on a port that it keeps."""

    def __init__(self, site: Site, server: str, *, name: str) -> None:
        self.port = free_port()
        self._site = site
        self._server = server
        self._name = name
        self._folder = site.folder / name
        self._machine: Machine | None = None

    def client(self) -> Redis:
        return Redis(
            port=self.port, protocol=2, socket_timeout=0.5, socket_connect_timeout=0.5, decode_responses=True
        )

    async def start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        options += ["--save", "", "--appendonly", "yes", "--repl-diskless-sync-delay", "0"]
        self._machine = self._site.start(self._name, self._server, *options)
        await until(self.answers, what=f"{self._name} answers", machine=self._machine)

    async def answers(self) -> bool:
        async with self.client() as client:
            with suppress(driver.RedisError):
                return bool(await client.ping())
        return False

    async def replicates(self, port: int) -> None:
        async with self.client() as client:
            await client.replicaof("127.0.0.1", port)

    async def in_step(self) -> bool:
        """Whether this replica follows its master."""
        async with self.client() as client:
            info: dict[str, Any] = await client.info("replication")
        return info.get("master_link_status") == "up" and not info.get("master_sync_in_progress")

    async def promote(self) -> None:
        async with self.client() as client:
            await client.replicaof("NO", "ONE")

    def send(self, number: signal.Signals) -> None:
        assert self._machine is not None
        self._machine.send(number)

    def kill(self) -> None:
        assert self._machine is not None
        self._machine.kill()
        self._machine.wait(5.0)

    def wipe(self) -> None:
        """Its data are gone; the process must have ended."""
        shutil.rmtree(self._folder)


class RouterMachine:
    """One router under one name and port; each life is a process, or a warden and its child."""

    def __init__(self, site: Site, name: str, *, words: Sequence[str]) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._site = site
        self._words = [*words, f"--port={self.port}", f"--state-path={site.folder / name / 'state.json'}"]
        self._words += [f"--router-id={name}"]
        self.machine: Machine | None = None

    @property
    def running(self) -> bool:
        return self.machine is not None and self.machine.running

    @property
    def pid(self) -> int:
        assert self.machine is not None
        return self.machine.pid

    @property
    def condition(self) -> str:
        """What became of its process, for people."""
        if self.machine is None:
            return f"router {self.name} never ran"
        status = self.machine.status
        if status is None:
            return f"router {self.name} runs (pid {self.pid})"
        if status < 0:
            return f"router {self.name} was ended by {signal.Signals(-status).name}"
        return f"router {self.name} ended with status {status}"

    async def start(self) -> None:
        """Until it answers, as owner or standby."""
        self.machine = self._site.narwhal(self.name, "serve", *self._words)
        await until(self.answers, what=f"router {self.name} answers", machine=self.machine)

    async def answers(self) -> bool:
        return await self.document("/health") is not None

    async def document(self, path: str) -> dict[str, Any] | None:
        """A document of the router whatever its status; None without an answer."""
        # Plain HTTP: without `verify` the client loads no certificates, which is most of its making.
        async with httpx.AsyncClient(trust_env=False, timeout=DOCUMENT_S, verify=False) as client:
            with suppress(httpx.HTTPError, ValueError):
                found: dict[str, Any] = (await client.get(f"{self.url}{path}")).json()
                return found
        return None

    def send(self, number: signal.Signals) -> None:
        assert self.machine is not None
        self.machine.send(number)

    async def ended(self, within_s: float = 60.0) -> int:
        """Its exit status, when it has ended."""
        assert self.machine is not None
        status = await asyncio.to_thread(self.machine.wait, within_s)
        if status is None:
            raise self.machine.failed("did not end")
        return status

    @property
    def log(self) -> Path:
        return self._site.folder / f"{self.name}.log"


def signal_process(pid: int, number: signal.Signals) -> None:
    """To one process that a record named; that it has ended already is no error."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def balancer_config(text: str, front: int, *, ports: Sequence[int]) -> str:
    """A haproxy.cfg like the shipped one (`bind :8000`, `router-a:8001`, ...) on this machine's ports."""
    text = re.sub(r"(?m)^(\s*bind)\s+\S*:\d+", rf"\1 127.0.0.1:{front}", text)
    for name, port in zip(("router-a", "router-b"), ports, strict=True):
        text = re.sub(rf"(?<=\s){name}:\d+", f"127.0.0.1:{port}", text)
    return text


async def start_balancer(site: Site, program: str, *, config: str, front: int) -> str:
    """haproxy in the foreground; its URL."""
    path = site.folder / "haproxy.cfg"
    path.write_text(config, encoding="utf-8")
    machine = site.start("haproxy", program, "-db", "-f", str(path))

    async def listening() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", front)
        except OSError:
            return False
        writer.close()
        return True

    await until(listening, what="haproxy listens", machine=machine)
    return f"http://127.0.0.1:{front}"
