"""An engine or a router whose name hangs in the resolver costs its own calls their time, and no other's.

The process's resolver is replaced: names of `.test` are known to the tests alone.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from narwhal.engine.client import LeanClient
from narwhal.engine.control import LeanControl
from narwhal.errors import EngineTimeout, EngineUnreachable
from narwhal.model.engine import EngineSpec
from narwhal.peers.http import HttpPeers
from tests.contract.test_engine_client import CALL, SETTINGS, fails
from tests.integration.test_lean_client import TLS, answers
from tests.support.processes import LIVENESS_S
from tests.support.scripted import ScriptedEngine, scripted_engine

ILL = replace(CALL, iid="ill", connect_s=0.2)
MANY = 40
"""More than a pool of threads has, on any machine."""


@pytest.fixture(autouse=True)
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`ill.test` hangs to the end, `gone.test` is unknown, the first address of `two.test` is dead."""
    let_go = threading.Event()
    real = socket.getaddrinfo

    def asked(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if host == "ill.test":
            let_go.wait(LIVENESS_S)
        if host in ("ill.test", "gone.test"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if host == "two.test":
            return [*real("127.0.0.9", port, *rest, **more), *real("127.0.0.1", port, *rest, **more)]
        return real("127.0.0.1" if str(host).endswith(".test") else host, port, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    yield
    let_go.set()


def named(engine: ScriptedEngine, iid: str, host: str) -> EngineSpec:
    return EngineSpec(iid, engine.spec.url.replace("127.0.0.1", host))


def serve(scenario: Callable[[ScriptedEngine], Awaitable[Any]], tls: ssl.SSLContext | None = None) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIVENESS_S), scripted_engine(answers, tls=tls) as engine:
            await scenario(engine)

    uvloop.run(main())


def test_requests_of_other_engines_go_on_while_one_name_hangs() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        specs = [named(engine, "e0", "well.test"), named(engine, "ill", "ill.test")]
        client = LeanClient(specs, replace(SETTINGS, max_connections=MANY + 1))
        waiting = [
            asyncio.ensure_future(client.fetch(replace(ILL, connect_s=LIVENESS_S))) for _ in range(MANY)
        ]
        await asyncio.sleep(0)
        assert (await client.fetch(CALL)).status == 200
        assert not any(one.done() for one in waiting)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        error = await fails(client.fetch(ILL), EngineTimeout)
        assert (error.kind, error.iid) == ("connect", "ill")
        await client.aclose()

    serve(scenario)


def test_probes_of_other_engines_go_on_while_one_name_hangs() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        specs = [named(engine, "e0", "well.test"), named(engine, "ill", "ill.test")]
        control = LeanControl(specs, connections=MANY + 1, connect_timeout_s=LIVENESS_S)
        ill = [
            asyncio.ensure_future(control.get("ill", "/health", timeout_s=LIVENESS_S)) for _ in range(MANY)
        ]
        await asyncio.sleep(0)
        assert (await control.get("e0", "/health", timeout_s=LIVENESS_S)).status == 200
        for one in ill:
            assert not one.done()
            one.cancel()
        await asyncio.gather(*ill, return_exceptions=True)
        await control.aclose()

    serve(scenario)


def test_an_unknown_name_is_no_connection() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        client = LeanClient([named(engine, "e0", "gone.test")], SETTINGS)
        error = await fails(client.fetch(CALL), EngineUnreachable)
        assert error.kind == "connect"
        assert str(error) == "connect: [Errno -2] Name or service not known"
        await client.aclose()

    serve(scenario)


def test_a_dead_address_of_a_name_is_passed_over() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        client = LeanClient([named(engine, "e0", "two.test")], SETTINGS)
        assert (await client.fetch(CALL)).status == 200
        await client.aclose()

    serve(scenario)


@pytest.mark.parametrize(("host", "good"), [("localhost", True), ("well.test", False)])
def test_the_certificate_is_held_to_the_name(host: str, good: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "cert.pem"))

    async def scenario(engine: ScriptedEngine) -> None:
        client = LeanClient([named(engine, "e0", host)], SETTINGS)
        if good:
            assert (await client.fetch(CALL)).status == 200
        else:
            assert "Hostname mismatch" in str(await fails(client.fetch(CALL), EngineUnreachable))
        await client.aclose()

    serve(scenario, context)


def test_other_routers_are_asked_while_the_name_of_one_hangs() -> None:
    async def ready(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"control_ready":true,"epoch":3,"reason":""}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(ready, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        peers = HttpPeers("a")
        waiting = [
            asyncio.ensure_future(peers.ready("http://ill.test:1", timeout_s=LIVENESS_S)) for _ in range(MANY)
        ]
        await asyncio.sleep(0)
        assert await peers.ready(f"http://well.test:{port}", timeout_s=LIVENESS_S) is not None
        assert await peers.ready("http://ill.test:1", timeout_s=0.1) is None
        for one in waiting:
            assert not one.done()
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await peers.aclose()
        server.close()

    uvloop.run(main())


END = """
import asyncio, socket, time, uvloop
from narwhal.names import Names
socket.getaddrinfo = lambda *_, **__: time.sleep(3600)
async def main():
    try:
        async with asyncio.timeout(0.05):
            await Names().reach("ill.test", None)
    except TimeoutError:
        print("given up")
uvloop.run(main())
"""


def test_a_process_ends_while_a_name_hangs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", END], capture_output=True, text=True, timeout=LIVENESS_S, check=True
    )
    assert (done.stdout, done.stderr) == ("given up\n", "")
