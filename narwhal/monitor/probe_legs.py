"""What a probe sends: health, and the two legs of a completion of our own, over the control pool.

The prompt is token IDs, so that its length is known whatever the tokenizer, and fresh ones each time: an
engine that still has the prompt's blocks in its prefix cache would pull nothing and prove nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import orjson

from narwhal.errors import (
    EngineError,
    EngineRefused,
    EngineTaken,
    PoolExhausted,
    ProbeLate,
    PullFailed,
    StaleEpoch,
)
from narwhal.model.evidence import ProbeOutcome
from narwhal.model.placement import Reservation
from narwhal.model.request import Api, InferenceRequest
from narwhal.model.settings import EngineSettings
from narwhal.policy.faults import BACK_PRESSURE, is_no_connection
from narwhal.ports import ControlClient, ControlGate, Dialect, EngineReply, KvDescriptor

HEALTH_PATH = "/health"
PROMPT_TOKENS = 160
"""More than one KV block of any usual size (16 to 128 tokens): a shorter prompt may hand off nothing."""
ANSWER_TOKENS = 4
"""Finds out a stream that stalls behind its first token, too."""
_LOWEST_ID, _IDS = 20, 200
"""Token IDs are 20 to 219: every vocabulary has them."""

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class Probed:
    """What the legs use and what bounds them: `health_s` one health check, `leg_s` one leg, in seconds."""

    model: str
    health_s: float
    leg_s: float

    @classmethod
    def by(cls, settings: EngineSettings, *, model: str) -> Probed:
        leg_s = max(settings.first_token_timeout_s, settings.health_timeout_s)
        return cls(model, settings.health_timeout_s, leg_s)


class Books(Protocol):
    """Where the work of probes is entered, for it loads engines as that of clients does; who gets none."""

    def taken(self, iid: str) -> bool:
        """An operator has it out of placement and no readmission of it runs."""

    def prefills(self, iid: str) -> None:
        """A prefill begins or ends there."""

    def left(self, iid: str, tokens: int, *, since: float) -> Reservation:
        """A prefill handed off KV, at `since` at the earliest, which waits for its decode."""

    def late(self, since: float) -> bool:
        """That KV is too old to be pulled."""

    def pulled(self, left: Reservation) -> None:
        """A decode elsewhere went well."""

    def stays(self, left: Reservation) -> None:
        """Its decode is on the same engine, which pulls nothing."""


class ProbeLegs:
    """Each call raises EngineError with `iid` set: the engine whose leg it was.

    A stale epoch has been told to the gate by then, and is a plain refusal where it cannot be true. An
    engine that is taken gets no leg, nor the rest of a probe that began before.
    """

    def __init__(
        self, control: ControlClient, dialect: Dialect, *, gate: ControlGate, probed: Probed, books: Books
    ) -> None:
        self._control = control
        self._dialect = dialect
        self._gate = gate
        self._probed = probed
        self._books = books

    async def health(self, iid: str) -> None:
        """Returns after a 200."""
        await self.ask(iid, HEALTH_PATH)

    async def ask(self, iid: str, path: str) -> bytes:
        """Body of a 200, within the time of a health check."""
        reply = await self.told(iid, self._control.get(iid, path, timeout_s=self._probed.health_s))
        if reply.status != 200:
            raise EngineRefused(f"{path} answered {reply.status}", iid=iid, status=reply.status)
        return reply.body

    async def complete(self, iid: str) -> None:
        """A direct completion of one token."""
        await self._decode(iid, own_request(self._probed.model, tokens=1))

    async def local(self, iid: str) -> None:
        """Both legs on one engine."""
        request = own_request(self._probed.model, tokens=ANSWER_TOKENS)
        descriptor = await self._prefill(iid, request)
        self._books.stays(self._books.left(iid, PROMPT_TOKENS, since=descriptor.since))
        await self._decode(iid, request)

    async def transfer(self, producer: str, consumer: str) -> None:
        """A prefill leg on one engine and the decode leg that pulls its KV on another."""
        request = own_request(self._probed.model, tokens=ANSWER_TOKENS)
        descriptor = await self._prefill(producer, request)
        left = self._books.left(producer, PROMPT_TOKENS, since=descriptor.since)
        if self._books.late(descriptor.since):
            raise ProbeLate("the KV handoff of the probe grew too old before its decode", iid=producer)
        await self._decode(consumer, request, descriptor=descriptor)
        self._books.pulled(left)

    async def produce(self, producer: str, consumer: str) -> None:
        """As `transfer`, for the producer's sake: that the consumer failed is the producer's doing, a
        PullFailed of it, if the consumer does well alone, and says nothing otherwise."""
        try:
            await self.transfer(producer, consumer)
        except EngineError as error:
            if error.iid != consumer or not may_be_the_pull(error):
                raise
            await self.complete(consumer)
            raise PullFailed(f"{consumer} could not pull its KV: {error}", iid=producer) from error

    async def _prefill(self, iid: str, request: InferenceRequest) -> KvDescriptor:
        self._books.prefills(iid)
        try:
            reply = await self._post(iid, self._dialect.prefill_body(request))
        finally:
            self._books.prefills(iid)
        return self._dialect.read_prefill(reply, iid)

    async def _decode(
        self, iid: str, request: InferenceRequest, *, descriptor: KvDescriptor | None = None
    ) -> None:
        body = self._dialect.decode_body(request, descriptor)
        self._dialect.read_decode(await self._post(iid, body), iid)

    async def _post(self, iid: str, body: bytes) -> EngineReply:
        if self._books.taken(iid):
            raise EngineTaken("it is drained", iid=iid)
        leg_s = self._probed.leg_s
        return await self.told(
            iid, self._control.post(iid, Api.COMPLETIONS.value, body=body, timeout_s=leg_s)
        )

    async def told(self, iid: str, call: Awaitable[Reply]) -> Reply:
        """What a call about that engine gave."""
        try:
            return await call
        except EngineError as error:
            error.iid = iid
            if isinstance(error, StaleEpoch) and self._lies(error):
                raise error.disbelieved() from None
            raise

    def _lies(self, error: StaleEpoch) -> bool:
        """It claims more than any owner can have reached. Tells the gate."""
        return not self._gate.overruled(error.iid, error.epoch) and error.epoch > self._gate.epoch


def own_request(model: str, *, tokens: int) -> InferenceRequest:
    """A known-good completion with a prompt that no engine has seen; `tokens`: length of the answer."""
    prompt = [_LOWEST_ID + byte % _IDS for byte in os.urandom(PROMPT_TOKENS)]
    fields = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "stream": True}
    return InferenceRequest(
        api=Api.COMPLETIONS,
        rid="",
        client_rid=None,
        fields=fields,
        body=orjson.dumps(fields),
        stream=True,
        include_usage=False,
        return_token_ids=False,
        arrived_at=0.0,
        arrived_wall=0.0,
    )


def is_ours(error: EngineError) -> bool:
    """It tells nothing of the engine: our own pool, epoch or standstill, an operator's drain."""
    return isinstance(error, PoolExhausted | ProbeLate | StaleEpoch | EngineTaken)


def is_busy(error: EngineError) -> bool:
    """It says "later" (408, 429), which is nobody's fault."""
    return isinstance(error, EngineRefused) and error.status in BACK_PRESSURE


def may_be_the_pull(error: EngineError) -> bool:
    """Of a consumer's leg: it had its request, and was neither busy nor kept from it by us."""
    return not (is_ours(error) or is_busy(error) or is_no_connection(error))


@dataclass(frozen=True, slots=True)
class Shown:
    """What legs show of one engine that took part. `status`: of the answer that failed it, 0 = none.
    `reached` is False where it took no connection. `pull`: another one's, which failed to pull its KV."""

    outcome: ProbeOutcome
    detail: str = ""
    status: int = 0
    reached: bool = True
    pull: bool = False


async def judged(legs: Awaitable[None], suspect: str) -> Shown:
    """What `legs` show of `suspect`."""
    try:
        await legs
    except EngineError as error:
        if outcome_for(suspect, error) is ProbeOutcome.INCONCLUSIVE:
            return Shown(ProbeOutcome.INCONCLUSIVE, str(error))
        status = error.status if isinstance(error, EngineRefused) else 0
        reached, pull = not is_no_connection(error), isinstance(error, PullFailed)
        return Shown(ProbeOutcome.BAD, str(error), status, reached, pull)
    except asyncio.CancelledError:
        if we_are_cancelled():
            raise
        return Shown(ProbeOutcome.INCONCLUSIVE, "the probe was cancelled")
    return Shown(ProbeOutcome.GOOD, status=200)


def we_are_cancelled() -> bool:
    """The whole task, and not only a call that it made: nobody is left to be told."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def outcome_for(iid: str, error: EngineError) -> ProbeOutcome:
    """What a leg's error says about `iid`, one of the engines that took part."""
    if is_ours(error) or error.iid != iid:
        return ProbeOutcome.INCONCLUSIVE
    return ProbeOutcome.BAD
