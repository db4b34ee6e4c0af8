"""The in-memory twin of `narwhal.peers.http`: routers of one process, found by URL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from narwhal.model.handover import PeerReady, PledgeAnswer, PledgeQuestion

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class PeerEnd:
    """One router as others reach it. `ready` is told who asks; `key` is its control key."""

    ready: Callable[[str], PeerReady]
    pledge: Callable[[PledgeQuestion], Awaitable[PledgeAnswer]]
    key: str = ""


@dataclass(slots=True)
class Neighbourhood:
    """Who can be reached, by URL. A router that is not here gives no answer."""

    ends: dict[str, PeerEnd] = field(default_factory=dict)


class PeerLink(Protocol):
    """What lies between two routers: a simulation's drops, delays and partitions."""

    async def call(self, url: str, operation: Callable[[], Awaitable[R]], *, timeout_s: float) -> R | None:
        """Runs `operation` at the peer, once or never; None when no answer came within `timeout_s`."""


class DirectLink:
    """No network."""

    async def call(self, url: str, operation: Callable[[], Awaitable[R]], *, timeout_s: float) -> R | None:
        return await operation()


class MemoryPeers:
    """`ports.Peers`. `me` and `key` as for `HttpPeers`."""

    def __init__(
        self, me: str, around: Neighbourhood, *, key: str = "", link: PeerLink | None = None
    ) -> None:
        self._me = me
        self._around = around
        self._key = key
        self._link = link or DirectLink()

    async def ready(self, url: str, *, timeout_s: float) -> PeerReady | None:
        async def asked() -> PeerReady | None:
            end = self._around.ends.get(url)
            return None if end is None else end.ready(self._me)

        return await self._link.call(url, asked, timeout_s=timeout_s)

    async def pledge(self, url: str, question: PledgeQuestion, *, timeout_s: float) -> PledgeAnswer | None:
        async def asked() -> PledgeAnswer | None:
            end = self._around.ends.get(url)
            if end is None:
                return None
            if end.key != self._key:
                return PledgeAnswer(False, "status 401", question.nonce)
            return await end.pledge(question)

        return await self._link.call(url, asked, timeout_s=timeout_s)

    async def aclose(self) -> None:
        """Nothing is held."""
