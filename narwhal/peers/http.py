"""Other routers over HTTP: their /ready, and the question for a pledge. Losing touch is a return value."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import SplitResult, urlsplit

import orjson

from narwhal.model.handover import PeerReady, PledgeAnswer, PledgeQuestion
from narwhal.model.plain_text import shown
from narwhal.names import Names
from narwhal.peers.connection import PeerConnection, PeerTrouble

ROUTER_HEADER = "x-narwhal-router"
"""Names the standby that polls, so that the owner knows that it is heard."""
IDLE_LIMIT = 16
"""Idle connections in all: routers come and go, under new addresses too."""
_REASON_CHARS = 1024
"""It names engines and settings."""
_NO_ANSWER = (OSError, TimeoutError, PeerTrouble, ValueError, KeyError, TypeError)


class HttpPeers:
    """`ports.Peers`. Belongs to the loop of its first call. `me` is this router's ID, `key` the control
    key ("" = none). One idle connection is kept to each of the routers that were asked last."""

    def __init__(self, me: str, *, key: str = "") -> None:
        self._fields = f"{ROUTER_HEADER}: {me}\r\n"
        self._bearer = f"authorization: Bearer {key}\r\n" if key else ""
        self._idle: dict[str, PeerConnection] = {}
        self._tls: ssl.SSLContext | None = None
        self._names = Names()

    async def ready(self, url: str, *, timeout_s: float) -> PeerReady | None:
        try:
            _, body = await self._ask(url, "GET /ready", timeout_s=timeout_s)
            told = orjson.loads(body)
            return PeerReady(
                told["control_ready"] is True,
                int(told["epoch"]),
                _reason(told),
            )
        except _NO_ANSWER:
            return None

    async def pledge(self, url: str, question: PledgeQuestion, *, timeout_s: float) -> PledgeAnswer | None:
        sent = orjson.dumps(asdict(question))
        try:
            status, body = await self._ask(
                url, "POST /narwhal/cluster/pledge", fields=self._bearer, body=sent, timeout_s=timeout_s
            )
            if status != 200:
                return PledgeAnswer(False, f"status {status}", question.nonce)
            told = orjson.loads(body)
            return PledgeAnswer(told["pledged"] is True, _reason(told), str(told["nonce"]))
        except _NO_ANSWER:
            return None

    async def _ask(
        self, url: str, target: str, *, fields: str = "", body: bytes = b"", timeout_s: float
    ) -> tuple[int, bytes]:
        place = urlsplit(url)
        verb, path = target.split(" ")
        head = f"{verb} {place.path}{path} HTTP/1.1\r\nhost: {place.netloc}\r\n{self._fields}{fields}"
        if body:
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        async with asyncio.timeout(timeout_s):
            return await self._exchange(url, place, request=f"{head}\r\n".encode("latin-1") + body)

    async def _exchange(self, url: str, place: SplitResult, *, request: bytes) -> tuple[int, bytes]:
        """On the idle connection, or, where that had been closed meanwhile, on a fresh one."""
        idle = self._idle.pop(url, None)
        if idle is not None:
            if idle.usable:
                try:
                    return await self._on(idle, url, request=request)
                except (OSError, PeerTrouble):
                    pass  # every question may be asked twice
            idle.close()
        fresh = await PeerConnection.opened(place, tls=self._context(place), names=self._names)
        return await self._on(fresh, url, request=request)

    async def _on(self, connection: PeerConnection, url: str, *, request: bytes) -> tuple[int, bytes]:
        whole = False
        try:
            answer = await connection.exchange(request)
            whole = connection.usable and url not in self._idle
        finally:
            if not whole:
                connection.close()
        if whole:
            self._idle[url] = connection
            if len(self._idle) > IDLE_LIMIT:
                # The one that rests longest: a connection that is used leaves the mapping meanwhile.
                self._idle.pop(next(iter(self._idle))).close()
        return answer

    def _context(self, place: SplitResult) -> ssl.SSLContext | None:
        """The system's CAs are read only where a peer speaks https: that costs 50 ms."""
        if place.scheme != "https":
            return None
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    async def aclose(self) -> None:
        idle, self._idle = self._idle, {}
        for connection in idle.values():
            connection.close()


def _reason(told: Mapping[str, Any]) -> str:
    """It goes into our own documents and logs."""
    return shown(str(told["reason"]), most=_REASON_CHARS)
