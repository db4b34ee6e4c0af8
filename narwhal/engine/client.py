"""The lean data-plane client: asyncio protocols over llhttp, one pool, one wheel (performance.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, TypeVar

from narwhal.clock import SystemClock
from narwhal.engine.arrivals import Arrivals
from narwhal.engine.connection import Connection
from narwhal.engine.dates import AnswerDates
from narwhal.engine.exchange import Exchange, Fetch
from narwhal.engine.patience import patience
from narwhal.engine.pool import IdleConnections, Seats
from narwhal.engine.stream import DecodeLeg
from narwhal.engine.target import Stamp, Target, trusted_roots
from narwhal.engine.wheel import StoodStill, Wheel
from narwhal.errors import EngineTimeout, EngineUnreachable
from narwhal.model.engine import EngineSpec
from narwhal.model.monitoring import PoolView
from narwhal.names import Names
from narwhal.ports import EngineCall, EngineReply, StreamCall, StreamSink

Result = TypeVar("Result")

_DRAIN_S = 1.0
"""How long a connection may take from DONE to the end of its response before it is closed."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """`max_connections` seats over all engines; `max_response_bytes` bounds one answer or one event."""

    max_connections: int
    max_response_bytes: int
    api_key: str = ""


def no_epoch() -> str | None:
    """The stamp of a router without a cluster."""
    return None


class LeanClient:
    """`ports.EngineClient` for the data plane. Make it on the loop that it serves."""

    def __init__(
        self, engines: Sequence[EngineSpec], settings: ClientSettings, *, stamp: Stamp = no_epoch
    ) -> None:
        loop = asyncio.get_running_loop()
        tls = trusted_roots(engines)
        self._targets: Mapping[str, Target] = {
            spec.iid: Target.of(spec, api_key=settings.api_key, tls=tls) for spec in engines
        }
        self._loop = loop
        self._stamp = stamp
        self._limit = settings.max_response_bytes
        self._seats = Seats(settings.max_connections, loop)
        self._idle = IdleConnections(loop)
        self._wheel = Wheel(loop)
        self._names = Names()
        self._arrivals = Arrivals(loop, SystemClock().now)
        self._open: set[Connection] = set()

    def allow_for(self, stood_still_s: StoodStill) -> None:
        """Time limits of calls end later by what our own loop missed of them."""
        self._wheel.stood_still_s = stood_still_s

    def date_by(self, now: Callable[[], float], dates: AnswerDates | None = None) -> None:
        """What answers tell of their age is on this clock; before the first call. `dates`: what other clients
        of the same engines have seen counts too."""
        self._arrivals = Arrivals(self._loop, now, dates=dates)

    def pool(self) -> PoolView:
        return PoolView(limit=self._seats.size, busy=self._seats.taken, waiting=self._seats.waiting)

    @property
    def connections(self) -> int:
        """Sockets to engines, in use or idle."""
        return len(self._open)

    @property
    def idle_connections(self) -> int:
        return len(self._idle)

    def fetch(self, call: EngineCall) -> Coroutine[Any, Any, EngineReply]:
        return self._run(Fetch(call, self._loop, limit=self._limit, arrivals=self._arrivals))

    def stream(self, call: StreamCall, sink: StreamSink) -> Coroutine[Any, Any, None]:
        return self._run(DecodeLeg(call, sink, loop=self._loop, limit=self._limit))

    async def warm(self, call: EngineCall) -> None:
        """Leaves an idle connection to `call.iid`, if it has none and a seat is free; sends nothing.

        Raises EngineUnreachable or EngineTimeout.
        """
        if not self._seats.take_free():
            return
        try:
            fetch = Fetch(call, self._loop, limit=self._limit, arrivals=self._arrivals)
            idle = self._idle.take(call.iid)
            self._idle.put(idle or await self._connect(fetch))
        finally:
            self._seats.give()

    async def aclose(self) -> None:
        self._idle.close()
        self._wheel.close()
        for connection in tuple(self._open):
            connection.abort()
        await asyncio.sleep(0)

    # --- one exchange ---

    async def _run(self, exchange: Exchange[Result]) -> Result:
        """Seat, connection, exchange; waits for the first two count in the call's total.

        One coroutine, since each below another costs a call at every step.
        """
        call = exchange.call
        if not self._seats.take_free():
            await self._seats.wait(call.pool_s)
        try:
            connection = self._idle.take(call.iid) or await self._connect(exchange)
            while True:
                self._begin(exchange, connection)
                try:
                    result = await exchange.done
                    break
                except EngineUnreachable:
                    connection.abort()
                    if not exchange.may_repeat:
                        raise
                except BaseException:
                    connection.abort()
                    raise
                finally:
                    self._wheel.drop(exchange)
                    exchange.detach()
                exchange = exchange.again()
                connection = await self._connect(exchange)
            if connection.exchange is None:
                self._idle.put(connection)
            else:
                connection.drain(self._idle.put, _DRAIN_S)
            return result
        finally:
            self._seats.give()

    def _begin(self, exchange: Exchange[Any], connection: Connection) -> None:
        call = exchange.call
        if call.permit is not None:
            try:
                call.permit()
            except BaseException:
                # After a no the connection is as good as before.
                self._idle.put(connection)
                raise
        connection.send(exchange, self._targets[call.iid].request(call, self._stamp()))
        due = exchange.next_due()
        if due is not None:
            self._wheel.watch(exchange, due)

    async def _connect(self, exchange: Exchange[Any]) -> Connection:
        if len(self._open) >= self._seats.size:
            self._idle.drop_oldest()
        call, due = exchange.call, exchange.total_due
        target = self._targets[call.iid]
        left_s = inf if due is None else due - self._loop.time()
        limit_s = min(call.connect_s, left_s)
        spare_s = left_s + call.spare_s - limit_s
        try:
            async with patience(limit_s, stood_still_s=self._wheel.stood_still_s, spare_s=spare_s):
                connection = await self._names.reach(target.host, partial(self._connect_to, target))
        except TimeoutError:
            message = f"no connection in {limit_s} s"
            raise EngineTimeout(message, iid=call.iid, kind="connect", limit_s=limit_s) from None
        except OSError as error:
            raise EngineUnreachable(f"connect: {error}", iid=call.iid, kind="connect") from error
        self._open.add(connection)
        return connection

    async def _connect_to(self, target: Target, address: str) -> Connection:
        _, connection = await self._loop.create_connection(
            lambda: Connection(target.iid, self._lost),
            address,
            target.port,
            ssl=target.tls,
            server_hostname=target.host if target.tls else None,
        )
        return connection

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.forget(connection)
