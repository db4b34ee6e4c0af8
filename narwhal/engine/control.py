"""The control pool: health, identity, models and metrics over httpx, apart from the data pool.

A saturated data path must not starve recovery (failures.md section 3), so these calls have connections of
their own. Proxy variables and .netrc are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import httpx

from narwhal.engine.target import Stamp, trusted_roots
from narwhal.errors import EngineTimeout, EngineUnreachable, PoolExhausted, StreamBroken
from narwhal.model.engine import EngineSpec, Leg
from narwhal.model.monitoring import PoolView
from narwhal.ports import EngineReply

_ANSWER_LIMIT = 8 << 20


class HttpxControl:
    """`ports.ControlClient`. `connections` bounds the pool (`engine.control_connections`).

    `stamp` gives `x-narwhal-epoch` (None: absent). A request that cannot get a connection of this pool in
    time raises PoolExhausted: that says nothing about the engine.
    """

    def __init__(
        self,
        engines: Sequence[EngineSpec],
        *,
        connections: int,
        connect_timeout_s: float,
        api_key: str = "",
        stamp: Stamp = lambda: None,
    ) -> None:
        self._urls: Mapping[str, str] = {spec.iid: spec.url for spec in engines}
        self._connect_s = connect_timeout_s
        self._limit = connections
        self._calls = 0
        self._stamp = stamp
        self._client = httpx.AsyncClient(
            headers={"authorization": f"Bearer {api_key}"} if api_key else None,
            limits=httpx.Limits(max_connections=connections, keepalive_expiry=4.0),
            verify=trusted_roots(engines) or False,
            trust_env=False,
            follow_redirects=False,
        )

    async def get(self, iid: str, path: str, *, timeout_s: float) -> EngineReply:
        """Any status is an answer. Raises EngineUnreachable, EngineTimeout, PoolExhausted or StreamBroken."""
        epoch = self._stamp()
        headers = {"x-narwhal-leg": Leg.PROBE.value, **({"x-narwhal-epoch": epoch} if epoch else {})}
        timeout = httpx.Timeout(timeout_s, connect=min(self._connect_s, timeout_s))
        self._calls += 1
        try:
            async with self._client.stream(
                "GET", self._urls[iid] + path, headers=headers, timeout=timeout
            ) as answer:
                return await _whole(answer, iid)
        except httpx.PoolTimeout:
            raise PoolExhausted("no free control connection", iid=iid) from None
        except httpx.TimeoutException as error:
            raise EngineTimeout(f"{type(error).__name__}: {path}", iid=iid) from None
        except httpx.HTTPError as error:
            raise EngineUnreachable(f"{type(error).__name__}: {error}", iid=iid) from error
        finally:
            self._calls -= 1

    def pool(self) -> PoolView:
        return PoolView(
            limit=self._limit,
            busy=min(self._calls, self._limit),
            waiting=max(0, self._calls - self._limit),
        )

    async def aclose(self) -> None:
        await self._client.aclose()


async def _whole(answer: httpx.Response, iid: str) -> EngineReply:
    body = bytearray()
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) > _ANSWER_LIMIT:
            raise StreamBroken(f"answer over {_ANSWER_LIMIT} bytes", iid=iid, kind="too_large")
    return EngineReply(answer.status_code, dict(answer.headers), bytes(body))
