"""The control pool: health, probes, identity, models and metrics, apart from the data pool.

A saturated data path must not starve recovery (failures.md section 3), so these calls have connections of
their own: a second lean client. A general one costs two to five milliseconds a call, each second, in every
idle router (docs/adr/0010).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from math import inf

from narwhal.engine.client import ClientSettings, LeanClient, no_epoch
from narwhal.engine.dates import AnswerDates
from narwhal.engine.pool import Seats
from narwhal.engine.refusal import raise_if_stale
from narwhal.engine.target import Stamp
from narwhal.engine.wheel import StoodStill
from narwhal.model.engine import EngineSpec, Leg
from narwhal.model.monitoring import PoolView
from narwhal.ports import EngineCall, EngineReply

_ANSWER_LIMIT = 8 << 20


class LeanControl:
    """`ports.ControlClient`. `connections` bounds the pool (`engine.control_connections`).

    `stamp` gives `x-narwhal-epoch` (None: absent). Make it on the loop that it serves.
    """

    def __init__(
        self,
        engines: Sequence[EngineSpec],
        *,
        connections: int,
        connect_timeout_s: float,
        api_key: str = "",
        stamp: Stamp = no_epoch,
    ) -> None:
        self._connect_s = connect_timeout_s
        # Seats of our own before the client's: a wait for one of them must not shorten the engine's time.
        self._seats = Seats(connections, asyncio.get_running_loop())
        settings = ClientSettings(connections, _ANSWER_LIMIT, api_key)
        self._client = LeanClient(engines, settings, stamp=stamp)

    def allow_for(self, stood_still_s: StoodStill) -> None:
        """As LeanClient's."""
        self._client.allow_for(stood_still_s)

    def date_by(self, now: Callable[[], float], dates: AnswerDates | None = None) -> None:
        """As LeanClient's."""
        self._client.date_by(now, dates)

    async def get(self, iid: str, path: str, *, timeout_s: float) -> EngineReply:
        return await self._ask(iid, f"GET {path}", body=b"", timeout_s=timeout_s)

    async def post(self, iid: str, path: str, *, body: bytes, timeout_s: float) -> EngineReply:
        return await self._ask(iid, f"POST {path}", body=body, timeout_s=timeout_s)

    async def _ask(self, iid: str, line: str, *, body: bytes, timeout_s: float) -> EngineReply:
        if not self._seats.take_free():
            await self._seats.wait(timeout_s)
        try:
            method, _, path = line.partition(" ")
            call = EngineCall(
                iid,
                method,
                path,
                Leg.PROBE,
                os.urandom(16).hex(),
                body,
                connect_s=min(self._connect_s, timeout_s),
                pool_s=timeout_s,
                total_s=timeout_s,
                spare_s=inf,
            )
            reply = await self._client.fetch(call)
        finally:
            self._seats.give()
        raise_if_stale(reply, iid)
        return reply

    def pool(self) -> PoolView:
        return PoolView(limit=self._seats.size, busy=self._seats.taken, waiting=self._seats.waiting)

    async def aclose(self) -> None:
        await self._client.aclose()
