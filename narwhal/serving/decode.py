"""The decode leg: streamed from the consumer into a sink (serving.md section 1.6 and 1.7)."""

from __future__ import annotations

from narwhal.errors import EngineError
from narwhal.model.engine import Leg
from narwhal.model.request import InferenceRequest
from narwhal.ports import KvDescriptor, StreamCall
from narwhal.serving.leg import Ask, EngineAccess, Place, blamed, engine_call
from narwhal.serving.output import Output


class DecodeLeg:
    """Runs decode legs. First output and silence have their limits, the request's deadline bounds all."""

    def __init__(self, access: EngineAccess) -> None:
        self._access = access

    async def run(
        self,
        request: InferenceRequest,
        place: Place,
        *,
        descriptor: KvDescriptor | None,
        output: Output,
    ) -> None:
        """Returns when the stream has ended well and `output` has sent all of it.

        `descriptor` is None on the producer itself.

        Raises EngineError with `leg` set, RequestExpired when the request's deadline was the limit, and
        what `place.permit` raises.
        """
        access = self._access
        ask = Ask(Leg.DECODE, request.api, access.dialect.decode_body(request, descriptor))
        limit_s = place.deadline.remaining_s(access.clock.now())
        call = StreamCall(
            call=engine_call(access, request, place=place, ask=ask, limit_s=limit_s),
            first_output_s=min(access.settings.first_token_timeout_s, limit_s),
            silence_s=access.settings.decode_read_timeout_s,
            decode_events=not request.stream,
        )
        try:
            await access.client.stream(call, output.sink)
            output.complete()
        except EngineError as error:
            raise blamed(error, Leg.DECODE, place=place, now=access.clock.now()) from None
