"""The port Peers: over HTTP against the real application, and its in-memory twin."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from narwhal.api.actions import OperatorActions
from narwhal.api.app import build_app
from narwhal.api.operator import OperatorViews
from narwhal.model.handover import PeerReady, PledgeAnswer, PledgeQuestion, YieldAnswer, YieldOutcome
from narwhal.model.maintenance import DrainOrder, OrderAnswer, OrderOutcome
from narwhal.peers.http import IDLE_LIMIT, HttpPeers
from narwhal.peers.memory import MemoryPeers, Neighbourhood, PeerEnd
from narwhal.ports import Peers
from narwhal.runtime.listener import HttpServer, bind
from tests.support import views

QUESTION = PledgeQuestion("b", "a:00ff", 7, ttl_s=5.0, nonce="n")
KEY = "a key"
Make = Callable[..., Peers]


@dataclass
class Far:
    """The router that is asked."""

    questions: list[PledgeQuestion] = field(default_factory=list)
    refusal: str = ""
    hangs: bool = False

    async def pledge(self, question: PledgeQuestion) -> PledgeAnswer:
        self.questions.append(question)
        if self.hangs:
            await asyncio.sleep(30)
        return PledgeAnswer(not self.refusal, self.refusal, question.nonce)


async def _unused(to: str | None) -> YieldAnswer:
    return YieldAnswer(YieldOutcome.DONE)


async def _no_order(order: DrainOrder) -> OrderAnswer:
    return OrderAnswer(OrderOutcome.DONE)


@asynccontextmanager
async def over_http(far: Far) -> AsyncIterator[tuple[str, Make]]:
    operator = OperatorViews(
        readiness=lambda: replace(views.STANDING_BY, epoch=9),
        health=lambda: views.HEALTHY,
        state=lambda: views.STATE,
        cluster=lambda: views.CLUSTER,
        handoff=lambda: views.HANDOFF,
        metrics=lambda: b"",
    )
    actions = OperatorActions(
        _unused,
        far.pledge,
        drain=_no_order,
        readmit=_no_order,
        lifecycle=lambda: views.LIFECYCLE,
        cluster=lambda: views.CLUSTER,
    )
    listener = bind("127.0.0.1", 0)
    server = HttpServer(build_app([], operator, actions=actions, control_key=KEY), listener)
    await server.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", HttpPeers
    finally:
        await server.stop()


@asynccontextmanager
async def in_memory(far: Far) -> AsyncIterator[tuple[str, Make]]:
    around = Neighbourhood()
    around.ends["http://b"] = PeerEnd(lambda asker: PeerReady(False, 9, "standby"), far.pledge, KEY)
    yield "http://b", lambda me, key="": MemoryPeers(me, around, key=key)


KINDS = {"http": over_http, "memory": in_memory}


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def meet(kind: str, script: Callable[[str, Make, Far], Awaitable[None]]) -> None:
    async def whole() -> None:
        far = Far()
        async with KINDS[kind](far) as (url, make):
            await script(url, make, far)

    asyncio.run(asyncio.wait_for(whole(), 30))


def test_ready_is_read_again_and_again(kind: str) -> None:
    async def script(url: str, make: Make, far: Far) -> None:
        peers = make("a")
        for _ in range(3):
            assert await peers.ready(url, timeout_s=5.0) == PeerReady(False, 9, "standby")
        await peers.aclose()

    meet(kind, script)


def test_a_pledge_is_asked_with_the_key(kind: str) -> None:
    async def script(url: str, make: Make, far: Far) -> None:
        peers = make("a", key=KEY)
        assert await peers.pledge(url, QUESTION, timeout_s=5.0) == PledgeAnswer(True, "", "n")
        far.refusal = "this router owns the fleet"
        refused = PledgeAnswer(False, "this router owns the fleet", "n")
        assert await peers.pledge(url, QUESTION, timeout_s=5.0) == refused
        assert far.questions == [QUESTION, QUESTION]
        await peers.aclose()

    meet(kind, script)


@pytest.mark.parametrize("key", ["", "another"])
def test_without_the_key_nobody_is_asked(kind: str, key: str) -> None:
    async def script(url: str, make: Make, far: Far) -> None:
        peers = make("a", key=key)
        assert await peers.pledge(url, QUESTION, timeout_s=5.0) == PledgeAnswer(False, "status 401", "n")
        assert far.questions == []
        await peers.aclose()

    meet(kind, script)


def test_nobody_there_is_no_answer(kind: str) -> None:
    async def script(url: str, make: Make, far: Far) -> None:
        peers = make("a")
        assert await peers.ready("http://127.0.0.1:1", timeout_s=5.0) is None
        assert await peers.pledge("http://127.0.0.1:1", QUESTION, timeout_s=5.0) is None
        await peers.aclose()

    meet(kind, script)


# --- over HTTP only ----------------------------------------------------------------------------------


def test_a_router_that_hangs_is_no_answer_and_the_next_question_is_not_its() -> None:
    async def script(url: str, make: Make, far: Far) -> None:
        peers = make("a", key=KEY)
        far.hangs = True
        assert await peers.pledge(url, QUESTION, timeout_s=0.1) is None
        far.hangs = False
        another = replace(QUESTION, nonce="m")
        assert await peers.pledge(url, another, timeout_s=5.0) == PledgeAnswer(True, "", "m")
        await peers.aclose()

    meet("http", script)


@pytest.mark.parametrize(
    "said",
    [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]",
     b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
     b"HTTP/1.1 200 OK\r\ncontent-length: 600000\r\n\r\n" + b" " * 600_000],
)  # fmt: skip
def test_whatever_else_is_said_is_no_answer(said: bytes) -> None:
    async def whole() -> None:
        async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(said)
            writer.close()

        server = await asyncio.start_server(odd, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        peers = HttpPeers("a", key=KEY)
        assert await peers.ready(url, timeout_s=5.0) is None
        assert await peers.pledge(url, QUESTION, timeout_s=5.0) is None
        await peers.aclose()
        server.close()
        await server.wait_closed()

    asyncio.run(asyncio.wait_for(whole(), 30))


def test_a_connection_that_the_peer_closed_while_idle_costs_no_answer() -> None:
    async def whole() -> None:
        body = b'{"control_ready": true, "epoch": 3, "reason": ""}'

        async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            writer.close()

        server = await asyncio.start_server(once, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        peers = HttpPeers("a")
        for _ in range(4):
            assert await peers.ready(url, timeout_s=5.0) == PeerReady(True, 3, "")
        await peers.aclose()
        server.close()
        await server.wait_closed()

    asyncio.run(asyncio.wait_for(whole(), 30))


def test_connections_to_routers_of_the_past_do_not_add_up() -> None:
    """Forty addresses one after the other, and one that is asked between all of them and keeps its socket."""
    opened: list[bytes] = []
    open_now: set[asyncio.StreamWriter] = set()

    async def whole() -> None:
        body = b'{"control_ready": true, "epoch": 3, "reason": ""}'

        async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first = (await reader.readuntil(b"\r\n\r\n")).split()[1]
            opened.append(first)
            open_now.add(writer)
            try:
                while True:
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
                    await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionResetError):
                open_now.discard(writer)
                writer.close()

        server = await asyncio.start_server(answering, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        peers = HttpPeers("a")
        for number in range(40):
            for name in ("kept", f"r{number}"):
                assert await peers.ready(f"{url}/{name}", timeout_s=5.0) == PeerReady(True, 3, "")
        assert opened.count(b"/kept/ready") == 1
        async with asyncio.timeout(10):
            while len(open_now) > IDLE_LIMIT:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await peers.aclose()
        server.close()
        await server.wait_closed()

    asyncio.run(asyncio.wait_for(whole(), 30))


@pytest.mark.parametrize("odd", ["\x1b[31m\n", "\0", "\u202e", "x" * 100_000])
def test_what_a_router_says_is_kept_short_and_printable(odd: str) -> None:
    async def whole() -> None:
        told = {"control_ready": False, "epoch": 3, "reason": odd, "pledged": False, "nonce": QUESTION.nonce}
        body = json.dumps(told).encode()

        async def foe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            writer.close()

        server = await asyncio.start_server(foe, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        peers = HttpPeers("a", key=KEY)
        for answer in (
            await peers.ready(url, timeout_s=5.0),
            await peers.pledge(url, QUESTION, timeout_s=5.0),
        ):
            assert answer is not None
            assert answer.reason.isprintable() and 0 < len(answer.reason) <= 1024
        await peers.aclose()
        server.close()
        await server.wait_closed()

    asyncio.run(asyncio.wait_for(whole(), 30))
