"""The control pool: health, identity, models and metrics, apart from the data pool.

A saturated data path must not starve recovery (failures.md section 3), so these calls have connections of
their own: a second lean client. A general one costs two to five milliseconds a call, each second, in every
idle router (docs/adr/0010).
"""

from __future__ import annotations

from collections.abc import Sequence

from narwhal.engine.client import ClientSettings, LeanClient, no_epoch
from narwhal.engine.refusal import CONFLICT, refusal
from narwhal.engine.target import Stamp
from narwhal.errors import StaleEpoch
from narwhal.model.engine import EngineSpec, Leg
from narwhal.model.monitoring import PoolView
from narwhal.ports import EngineCall, EngineReply

_ANSWER_LIMIT = 8 << 20
_RID = "narwhal-control"
"""`x-request-id` of calls that belong to no client's request."""


class LeanControl:
    """`ports.ControlClient`. `connections` bounds the pool (`engine.control_connections`).

    `stamp` gives `x-narwhal-epoch` (None: absent). A request that cannot get a connection of this pool in
    time raises PoolExhausted: that says nothing about the engine. Make it on the loop that it serves.
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
        self._client = LeanClient(engines, ClientSettings(connections, _ANSWER_LIMIT, api_key), stamp=stamp)

    async def get(self, iid: str, path: str, *, timeout_s: float) -> EngineReply:
        """Raises EngineUnreachable, EngineTimeout, PoolExhausted, StreamBroken or StaleEpoch."""
        call = EngineCall(
            iid,
            "GET",
            path,
            Leg.PROBE,
            _RID,
            connect_s=min(self._connect_s, timeout_s),
            pool_s=timeout_s,
            total_s=timeout_s,
        )
        reply = await self._client.fetch(call)
        if reply.status == CONFLICT and isinstance(error := refusal(reply, iid), StaleEpoch):
            raise error
        return reply

    def pool(self) -> PoolView:
        return self._client.pool()

    async def aclose(self) -> None:
        await self._client.aclose()
