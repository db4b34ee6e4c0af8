"""The prefill leg: one token on the producer, a validated KV handoff back (serving.md section 1.5)."""

from __future__ import annotations

from narwhal.errors import EngineError
from narwhal.model.engine import Leg
from narwhal.model.request import InferenceRequest
from narwhal.ports import KvDescriptor
from narwhal.serving.leg import Ask, EngineAccess, Place, blamed, engine_call


class PrefillLeg:
    """Runs prefill legs. `timeout_s` (`serving.prefill_timeout_s`) and the request's deadline bound each."""

    def __init__(self, access: EngineAccess, *, timeout_s: float) -> None:
        self._access = access
        self._timeout_s = timeout_s

    async def run(self, request: InferenceRequest, place: Place) -> KvDescriptor:
        """The KV handoff, fit to be sent to a decode engine.

        Raises EngineError with `leg` set, RequestExpired when the request's deadline was the limit, and
        what `place.permit` raises.
        """
        access = self._access
        ask = Ask(Leg.PREFILL, request.api, access.dialect.prefill_body(request))
        left_s = place.deadline.remaining_s(access.clock.now())
        limit_s = min(self._timeout_s, left_s)
        call = engine_call(access, request, place=place, ask=ask, limit_s=limit_s)
        call.spare_s = left_s - limit_s
        try:
            return access.dialect.read_prefill(await access.client.fetch(call), place.iid)
        except EngineError as error:
            raise blamed(error, Leg.PREFILL, place=place, now=access.clock.now()) from None
