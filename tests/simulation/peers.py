"""Routers that ask each other: the `Peers` port over the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from narwhal.model.handover import PeerReady, PledgeAnswer, PledgeQuestion
from tests.simulation.network import Network
from tests.simulation.routers import SimRouter
from tests.support.virtual_time import Strand

Ask = Callable[[SimRouter], Awaitable[Any]]


class SimPeers:
    """What `me` asks on `strand`. `find` gives the latest life of a router by the URL that it tells."""

    def __init__(
        self, me: str, strand: Strand, *, net: Network, find: Callable[[str], SimRouter | None]
    ) -> None:
        self._me = me
        self._strand = strand
        self._net = net
        self._find = find

    async def ready(self, url: str, *, timeout_s: float) -> PeerReady | None:
        answer: PeerReady | None = await self._asked(url, self._readiness, timeout_s)
        return answer

    async def _readiness(self, target: SimRouter) -> PeerReady:
        target.parts.court.heard(self._me)
        gate, degraded = target.parts.gate, target.degraded
        sound = gate.may_admit(target.clock.now()) and not degraded
        return PeerReady(sound, gate.epoch, degraded or "standby")

    async def pledge(self, url: str, question: PledgeQuestion, *, timeout_s: float) -> PledgeAnswer | None:
        answer: PledgeAnswer | None = await self._asked(
            url, lambda target: target.parts.keeper.pledge(question), timeout_s
        )
        return answer

    async def _asked(self, url: str, ask: Ask, timeout_s: float) -> Any:
        loop = self._net.loop
        done: asyncio.Future[Any] = loop.create_future()
        timer = loop.call_later(timeout_s, _settle, done, None)
        self._net.at(self._net.latency(), self._arrive, url, ask, done)
        try:
            return await done
        finally:
            timer.cancel()

    def _arrive(self, url: str, ask: Ask, done: asyncio.Future[Any]) -> None:
        target = self._find(url)
        if target is not None and target.alive and not self._net.are_parted(self._me, target.host.name):
            target.main.spawn(self._answer(target, ask, done))

    async def _answer(self, target: SimRouter, ask: Ask, done: asyncio.Future[Any]) -> None:
        answer = await ask(target)
        if not self._net.are_parted(self._me, target.host.name):
            context = self._strand.context()
            self._net.loop.call_later(self._net.latency(), _settle, done, answer, context=context)

    async def aclose(self) -> None:
        """Nothing is held."""


def _settle(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():
        future.set_result(answer)
