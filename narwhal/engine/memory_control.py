"""The in-memory twin of `narwhal.engine.control`: engines of one process, reached without a socket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from narwhal.engine.client import no_epoch
from narwhal.engine.pool import Seats
from narwhal.engine.refusal import raise_if_stale
from narwhal.engine.target import Stamp
from narwhal.errors import EngineTimeout, EngineUnreachable
from narwhal.model.engine import Leg
from narwhal.ports import EngineReply


@dataclass(frozen=True, slots=True)
class ControlAsk:
    """One control call as the engine sees it. Header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


Answering = Callable[[ControlAsk], Awaitable[EngineReply]]
"""One engine. It may wait for ever; ConnectionError: it hangs up without an answer."""


class MemoryControl:
    """`ports.ControlClient`. `engines` maps engine ID to what answers; one that is not there is not
    reachable. The rest as for `LeanControl`. Make it on the loop that it serves."""

    def __init__(
        self,
        engines: Mapping[str, Answering],
        *,
        connections: int,
        api_key: str = "",
        stamp: Stamp = no_epoch,
    ) -> None:
        self._engines = engines
        self._seats = Seats(connections, asyncio.get_running_loop())
        self._bearer = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._stamp = stamp

    async def get(self, iid: str, path: str, *, timeout_s: float) -> EngineReply:
        return await self._ask(iid, ControlAsk("GET", path, self._headers(), b""), timeout_s=timeout_s)

    async def post(self, iid: str, path: str, *, body: bytes, timeout_s: float) -> EngineReply:
        return await self._ask(iid, ControlAsk("POST", path, self._headers(), body), timeout_s=timeout_s)

    async def _ask(self, iid: str, ask: ControlAsk, *, timeout_s: float) -> EngineReply:
        if not self._seats.take_free():
            await self._seats.wait(timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                if iid not in self._engines:
                    raise EngineUnreachable("connect: nobody listens", iid=iid, kind="connect")
                reply = await self._engines[iid](ask)
        except TimeoutError:
            raise EngineTimeout(f"no whole answer in {timeout_s} s", iid=iid) from None
        except ConnectionError as error:
            raise EngineUnreachable(f"connection lost before a response: {error}", iid=iid) from error
        finally:
            self._seats.give()
        raise_if_stale(reply, iid)
        return reply

    def _headers(self) -> Mapping[str, str]:
        epoch = self._stamp()
        stamped = {} if epoch is None else {"x-narwhal-epoch": epoch}
        leg = {"x-narwhal-leg": Leg.PROBE.value, "x-request-id": os.urandom(16).hex()}
        return {**self._bearer, **leg, **stamped}

    async def aclose(self) -> None:
        """Nothing is held."""
