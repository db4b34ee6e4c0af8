"""The lease keeper: drives the lease machine against the store, on a thread and loop of its own.

One coroutine, one store call at a time. Before every send the machine has looked at the clock and the gate
has been asked whether the token still lives; after every reply the clock is read again, and moving D and
fencing are one step under the gate's lock. Commands come from the main thread through a mailbox; effects go
back through `tell`, which must not block (runtime hands in `call_soon_threadsafe` of the main loop).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from dataclasses import dataclass

from tenacity import AsyncRetrying, RetryCallState, retry_if_result, wait_fixed

from narwhal.clock import Clock
from narwhal.cluster.failsafe import PledgeRounds
from narwhal.cluster.gate import LeasedGate
from narwhal.cluster.mailbox import Mailbox
from narwhal.cluster.sight import Lookout, StoreMeter
from narwhal.errors import InvariantViolation, StoreDamaged, StoreError, StoreProtocolError
from narwhal.model.control import OwnerRef, RouterState
from narwhal.model.handover import PledgeAnswer, PledgeQuestion
from narwhal.model.leadership import LeaseSight
from narwhal.model.lease import OwnerMeta, Stale
from narwhal.model.store_call import AcquireRequest, RenewRequest
from narwhal.policy.election import Election
from narwhal.policy.intents import (
    Acquire,
    Alarm,
    AskPledges,
    Claim,
    Effect,
    Extended,
    Fenced,
    Granted,
    Inputs,
    Intent,
    Peek,
    Pledged,
    Release,
    Released,
    Renew,
    Reply,
    Rest,
    Stop,
)
from narwhal.ports import LeaseStore

MAIN_SILENT_S = 1.5
"""Renewals stop when the main loop has not ticked for so long."""
RETRY_S = 0.25
SAVE_S = 0.5
"""The release of a fenced lease waits so long for the checkpoint: disk or main loop may stand still."""
PLEDGE_S = 0.6
"""An answer after that would come too late for the asker."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How this router stands among the standbys. Swapped whole by the main loop."""

    may_compete: bool = False
    rank: int = 0
    ready_to_take: bool = True


def no_warden(token: str, floor: int) -> None:
    """Nobody would release it."""


@dataclass(frozen=True, slots=True)
class KeeperLinks:
    """What the keeper is given besides machine, store and gate.

    `tell` takes every effect and, when it changed, the new sight. `heartbeat` is the time (`clock.now`) of
    the main loop's last tick. `draw` gives a fresh 128-bit text and `jitter` a number in [0, 1).
    `tell_token` takes the token of an acquire, and the highest epoch known, before it is sent: the warden
    has to release it if this process ends before it knows of the grant. `rounds` asks the other voters in
    fail-safe mode.
    """

    clock: Clock
    meta: OwnerMeta
    tell: Callable[[Effect | LeaseSight], None]
    heartbeat: Callable[[], float]
    draw: Callable[[], str]
    jitter: Callable[[], float]
    tell_token: Callable[[str, int], None] = no_warden
    rounds: PledgeRounds | None = None


class LeaseKeeper:
    """The coroutine `run` and the commands that may be given to it from any thread."""

    def __init__(self, machine: Election, store: LeaseStore, *, gate: LeasedGate, links: KeeperLinks) -> None:
        self._machine = machine
        self._store = store
        self._gate = gate
        self._links = links
        self._clock = links.clock
        meta = links.meta
        self._lookout = Lookout(OwnerRef(meta.router_id, meta.url, control_url=meta.control_url))
        self._meter = StoreMeter()
        self._mail = Mailbox(links.clock, after=self._show)
        self._saved = ""
        self.standing = Standing()
        """Swapped whole by the main loop."""

    # --- commands, from any thread ---------------------------------------------------------------

    def opened(self, token: str) -> None:
        """The first fenced write is through and the gate is open."""
        self._mail.post(lambda: self._machine.opened(token))

    def fence(self, token: str, why: str) -> None:
        self._gate.fence(token, why)
        self._mail.post(lambda: self._apply(self._machine.fence(token, why)))

    def saved(self, token: str) -> None:
        """The state under the fenced `token` is in the checkpoint, or cannot be: its release may be sent."""

        def note() -> None:
            self._saved = token

        self._mail.post(note)

    def supersede(self, token: str, floor: int, *, why: str) -> None:
        """The higher epoch `floor` is known elsewhere: acquire again above it."""
        self._gate.fence(token, why)
        self._mail.post(
            lambda: self._apply(self._machine.supersede(token, floor, why=why, now=self._clock.now()))
        )

    def drain(self, token: str) -> None:
        self._mail.post(lambda: self._machine.drain(token))

    def release(self, reason: str, *, successor: str = "") -> None:
        """Gives a drained lease back; `Released` is told when that is done or given up."""
        self._mail.post(lambda: self._machine.release(reason, successor=successor, now=self._clock.now()))

    def stop(self) -> None:
        """Ends `run`, after giving back what is held."""
        self._mail.post(lambda: self._machine.stop(now=self._clock.now()))

    async def pledge(self, question: PledgeQuestion) -> PledgeAnswer:
        """A voter's answer, given on the keeper's thread: one that sends acquires promises nothing else.

        Refuses where the keeper does not come to it in time.
        """
        told: concurrent.futures.Future[PledgeAnswer] = concurrent.futures.Future()

        def answer() -> None:
            if not told.set_running_or_notify_cancel():
                return
            refused = PledgeAnswer(False, "the lease keeper failed", question.nonce)
            try:
                refused = self._machine.pledge(question, self._clock.now())
            finally:
                told.set_result(refused)

        self._mail.post(answer)
        try:
            async with asyncio.timeout(PLEDGE_S):
                return await asyncio.wrap_future(told)
        except TimeoutError:
            return PledgeAnswer(False, "the lease keeper is busy", question.nonce)

    def nudge(self) -> None:
        """The log told of a change of hands: look now."""
        self._mail.post(lambda: self._machine.candidacy.nudge(self._clock.now()))

    def wake(self) -> None:
        """`standing` changed."""
        self._mail.post(lambda: None)

    # --- the loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keeps and seeks the lease until stopped. Raises StoreProtocolError at start if the server cannot
        be used at all; later such an answer is no answer. Raises what a command raised: a bug."""
        self._mail.open()
        while True:
            self._mail.bugs.check()
            now = self._clock.now()
            self._apply(self._machine.tick(now))
            intent = self._machine.next(now, self._inputs(now))
            self._machine.check_invariants()
            self._show()
            match intent:
                case Stop():
                    return
                case Rest(until):
                    await self._mail.pause(until - now)
                case Peek() | Claim():
                    await self._exchange(intent)
                case _:
                    await self._persist(intent)

    def _inputs(self, now: float) -> Inputs:
        standing, links = self.standing, self._links
        return Inputs(
            token=links.draw(),
            nonce=links.draw(),
            jitter=links.jitter(),
            rank=standing.rank,
            ready_to_take=standing.ready_to_take,
            main_alive=self._main_alive(now),
            may_compete=standing.may_compete,
        )

    def _main_alive(self, now: float) -> bool:
        return now - self._links.heartbeat() <= MAIN_SILENT_S

    async def _persist(self, intent: Intent) -> None:
        """Repeats an acquire, renewal or release until it is answered or its time is over.

        Tenacity's own delay stops read the real clock, so stop and sleep are ours.
        """
        attempts = AsyncRetrying(
            stop=self._time_is_over,
            sleep=self._mail.pause,
            wait=wait_fixed(RETRY_S),
            retry=retry_if_result(lambda settled: not settled),
            retry_error_callback=lambda _: self._apply(self._machine.gave_up(self._clock.now())),
        )
        first: Intent | None = intent

        async def attempt() -> bool:
            nonlocal first
            self._mail.bugs.check()
            now = self._clock.now()
            self._apply(self._machine.tick(now))
            call, first = first or self._machine.again(now, main_alive=self._main_alive(now)), None
            if call is None:
                self._apply(self._machine.gave_up(now))
                return True
            return await self._exchange(call)

        await attempts(attempt)

    def _time_is_over(self, state: RetryCallState) -> bool:
        tenure = self._machine.tenure
        return tenure is None or self._clock.now() + RETRY_S >= tenure.retry_until

    async def _exchange(self, call: Intent) -> bool:
        """Sends one call and hands its reply to the machine; False: it got no answer."""
        reply = await self._send(call)
        now = self._clock.now()
        self._apply(self._machine.answered(reply, now))
        self._show()
        return reply is not None and not isinstance(reply, Stale | Pledged)

    async def _checkpointed(self, token: str) -> None:
        """Fenced: first the checkpoint, then the release."""
        until = self._clock.now() + SAVE_S
        while self._saved != token and (left_s := until - self._clock.now()) > 0:
            await self._mail.pause(left_s)

    async def _send(self, call: Intent) -> Reply | None:
        if isinstance(call, Release) and self._machine.phase is RouterState.FENCED:
            await self._checkpointed(call.token)
        before = self._clock.now()
        if isinstance(call, Renew | AskPledges) and not self._gate.alive(call.token):
            self._apply(self._machine.fence(call.token, "fenced on the main loop"))
            return None
        if isinstance(call, AskPledges):
            rounds = self._links.rounds
            return None if rounds is None else await rounds.ask(call, timeout_s=self._timeout(before))
        try:
            reply = await self._dispatch(call, self._timeout(before))
        except StoreError as error:
            unusable = isinstance(error, StoreProtocolError) and not isinstance(error, StoreDamaged)
            if unusable and self._machine.phase is RouterState.STARTING:
                raise
            self._meter.failed(error)
            return None
        self._meter.answered(self._clock.now() - before)
        return reply

    def _timeout(self, now: float) -> float:
        """o, and nothing of a held lease waits past D."""
        attempt = self._machine.timings.attempt_timeout_s
        tenure = self._machine.tenure
        if tenure is None or tenure.ending is not None or not tenure.epoch:
            return attempt
        return max(0.01, min(attempt, tenure.deadline - now))

    async def _dispatch(self, call: Intent, timeout_s: float) -> Reply:
        ttl_ms = round(self._machine.timings.ttl_s * 1000)
        meta = self._links.meta
        match call:
            case Peek():
                return await self._store.peek(timeout_s=timeout_s)
            case Claim(nonce, floor, marker_ttl_ms):
                return await self._store.claim(nonce, floor=floor, ttl_ms=marker_ttl_ms, timeout_s=timeout_s)
            case Acquire(token, expected, inc, floor):
                self._links.tell_token(token, floor)
                acquire = AcquireRequest(token, meta, expected, inc=inc, floor=floor, ttl_ms=ttl_ms)
                return await self._store.acquire(acquire, timeout_s=timeout_s)
            case Renew(token, epoch, seq, life):
                renewal = RenewRequest(token, meta, epoch, seq=seq, life=life, ttl_ms=ttl_ms)
                return await self._store.renew(renewal, timeout_s=timeout_s)
            case Release(token, reason, successor):
                return await self._store.release(
                    token, reason=reason, successor=successor, timeout_s=timeout_s
                )
            case _:
                raise InvariantViolation(f"{type(call).__name__} is no store call")

    # --- effects ---------------------------------------------------------------------------------

    def _apply(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Granted(token, epoch, valid_until):
                    self._gate.grant(token, epoch, valid_until=valid_until)
                case Extended(token, valid_until):
                    if not self._gate.extend(token, valid_until):
                        self._apply(self._machine.fence(token, "fenced before the reply was read"))
                        continue
                case Fenced(token, why):
                    self._gate.fence(token, why)
                case Released(token):
                    self._gate.fence(token, "released")
                case Alarm():
                    pass
            self._links.tell(effect)

    def _show(self) -> None:
        """Shows the lease as it stands now, if that changed."""
        sight = self._lookout.sight(self._machine, self._meter)
        if sight != self._gate.sight:
            self._gate.sight = sight
            self._links.tell(sight)
