"""The main loop's half of a router's membership: opens, fences, mirrors, yields.

The keeper tells effects (on the main loop, through `take`); what must happen because of them happens here:
a grant begins a takeover, a fence ends the ownership and starts the mirror again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from narwhal.clock import Clock
from narwhal.cluster.claims import Claimant, ClaimCourt
from narwhal.cluster.flush import TotalsFlusher
from narwhal.cluster.gate import LeasedGate
from narwhal.cluster.history import History
from narwhal.cluster.lease_loop import LeaseKeeper
from narwhal.cluster.mirror import Mirror
from narwhal.cluster.publisher import Publisher
from narwhal.cluster.pulse import Pulse
from narwhal.cluster.roster import Roster
from narwhal.cluster.saving import Saver
from narwhal.cluster.start import StartChecks
from narwhal.cluster.takeover import Saved, Takeover
from narwhal.cluster.trouble import Bugs, Troubles
from narwhal.errors import StoreError
from narwhal.model.leadership import LeaseSight
from narwhal.policy.claims import CLAIM_REASON
from narwhal.policy.intents import Alarm, Effect, Extended, Fenced, Granted, Released
from narwhal.ports import Recorder

UPKEEP_S = 0.25
log = logging.getLogger("narwhal.cluster")

RELEASE_MARGIN_S = 1.0
"""The keeper repeats a release for T; nobody waits longer for it than this above."""
FAREWELL_S = 1.0
"""Snapshot and flush of a yield together; what is not done by then is skipped."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The parts that one member joins; `narwhal.cluster.assembly` makes them."""

    clock: Clock
    gate: LeasedGate
    keeper: LeaseKeeper
    mirror: Mirror
    publisher: Publisher
    saver: Saver
    takeover: Takeover
    flusher: TotalsFlusher
    roster: Roster
    start: StartChecks
    pulse: Pulse
    history: History
    court: ClaimCourt
    claimant: Claimant
    recorder: Recorder


class Member:
    """One router of the cluster. Main loop only."""

    def __init__(self, crew: Crew, *, max_age_s: float, ttl_s: float, resume: bool) -> None:
        self._crew = crew
        self._max_age_s = max_age_s
        self._release_s = ttl_s + RELEASE_MARGIN_S
        self._resume = resume
        self._opening: tuple[str, asyncio.Task[None]] | None = None
        self._epoch = 0
        self._mirroring: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._failed: asyncio.Future[None] | None = None
        self._released = asyncio.Event()
        self._confirmed = False
        self._reason = ""
        self._troubles = Troubles()
        self._bugs = Bugs()
        self.opened: Callable[[], None] = lambda: None
        """Told when a takeover is done; runtime hands it in, as it does `ended`."""
        self.ended: Callable[[], None] = lambda: None

    # --- life ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Works until cancelled. Raises ConfigError (exit 2) or SavedStateError (exit 3) from the checks
        at start, and whatever bug shows in one of its tasks."""
        self._bugs.check()
        self._failed = asyncio.get_running_loop().create_future()
        crew = self._crew
        for work in (
            crew.pulse.run(),
            crew.flusher.run(),
            self._begin(),
            self._upkeep(),
            crew.claimant.run(),
        ):
            self._spawn(work)
        self._follow()
        try:
            await self._failed
        finally:
            await self._cancel(*self._tasks)

    async def _begin(self) -> None:
        """The checks at start; only then may this router compete."""
        await self._crew.start.check()
        self._crew.roster.admitted()

    async def _upkeep(self) -> None:
        """Deltas of the owner, checkpoints of a standby, the roster of both."""
        crew = self._crew
        while True:
            await crew.clock.sleep(UPKEEP_S)
            now = crew.clock.now()
            await self._tried("log", crew.publisher.publish_changes())
            crew.roster.keep_out()
            await self._tried("roster", crew.roster.refresh(now))
            if crew.gate.may_admit(now):
                continue
            # A fence that met the opening at its last step may have ended the mirror.
            self._follow()
            if crew.saver.due():
                self._spawn(crew.saver.keep())

    async def _tried(self, what: str, work: Awaitable[bool]) -> None:
        """`work` says whether the store was asked."""
        try:
            if await work:
                self._troubles.over(what)
        except StoreError as error:
            self._troubles.met(what, error)

    async def _save_fenced(self, token: str) -> None:
        await self._crew.saver.save()
        self._crew.keeper.saved(token)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """A task that raised is a bug or a refusal to start: `run` raises it."""
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def _cancel(self, *tasks: asyncio.Task[Any] | None) -> None:
        for task in tasks:
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({task})

    # --- what the keeper tells -------------------------------------------------------------------

    def take(self, told: Effect | LeaseSight) -> None:
        """One effect or the new sight, on the main loop. What goes wrong with it is raised by `run`."""
        with self._bugs:
            self._take(told)
        if self._bugs.first is not None:
            self._fail(self._bugs.first)

    def _take(self, told: Effect | LeaseSight) -> None:
        crew = self._crew
        match told:
            case Granted(token):
                self._epoch = told.epoch
                crew.history.note("acquired", told.epoch)
                self._opening = (token, self._spawn(self._open(told)))
            case Extended():
                self._extended(told)
            case Fenced(token, why):
                self._end(token)
                self._released.set()
                crew.history.note("fenced", self._epoch, reason=why)
                self._spawn(self._save_fenced(token))
            case Released(token, confirmed):
                self._end(token)
                crew.history.note(
                    "released", self._epoch, reason=self._reason if confirmed else "unconfirmed"
                )
                self._confirmed = confirmed
                self._released.set()
            case Alarm(text):
                log.error("lease: %s", text)
                crew.recorder.event("lease_alarm", {"text": text})
            case LeaseSight():
                crew.court.looked(told)
                if crew.history.saw(told):
                    crew.mirror.followed, crew.roster.lived = True, told.epoch
        crew.gate.changed()

    async def _open(self, granted: Granted) -> None:
        crew, token = self._crew, granted.token
        saved = Saved(crew.mirror, crew.start.file.record, self._max_age_s, self._resume)
        ready = await crew.takeover.prepare(granted, saved)
        for note in crew.takeover.notes:
            log.warning("opening: %s", note)
        if ready and crew.gate.open(token):
            crew.keeper.opened(token)
            await self._cancel(self._mirroring)
            crew.recorder.event("ownership", {"change": "opened", "epoch": granted.epoch})
            self.opened()
        elif crew.gate.alive(token):
            crew.keeper.fence(token, "the first fenced write did not succeed")

    def _extended(self, told: Extended) -> None:
        if told.reinstated:
            self._spawn(self._republish())
        elif successor := self._crew.court.judge(told.claims):
            self._spawn(self._yield_to(successor))

    async def _yield_to(self, claimant: str) -> None:
        await self.give_back(CLAIM_REASON, successor=claimant)

    async def _republish(self) -> None:
        with contextlib.suppress(StoreError):
            await self._crew.publisher.snapshot()

    def _end(self, token: str) -> None:
        """The ownership is over: nothing of it may go on, and the mirror follows again."""
        if self._opening is not None and self._opening[0] == token:
            self._opening[1].cancel()
            self._opening = None
        self._crew.publisher.end(token)
        self.ended()
        self._follow()

    def _follow(self) -> None:
        if self._mirroring is None or self._mirroring.done():
            self._mirroring = self._spawn(self._crew.mirror.run())

    # --- giving the lease back -------------------------------------------------------------------

    async def give_back(self, reason: str, *, successor: str = "") -> bool:
        """Closes admission, hands the state over, releases. True: the store confirmed that it is released.

        False: there was no lease to give, it was lost on the way, or nothing was confirmed within T.
        """
        crew = self._crew
        token = crew.gate.close()
        if not token:
            return False
        if self._opening is not None:
            self._opening[1].cancel()
        crew.keeper.drain(token)
        self._released.clear()
        self._confirmed, self._reason = False, reason
        await self._farewell(crew.publisher.snapshot(), crew.flusher.flush())
        crew.keeper.release(reason, successor=successor)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._release_s):
                await self._released.wait()
        return self._confirmed

    async def _farewell(self, *writes: Awaitable[Any]) -> None:
        tasks = [asyncio.ensure_future(write) for write in writes]
        await asyncio.wait(tasks, timeout=FAREWELL_S)
        await self._cancel(*(task for task in tasks if not task.done()))
        for task in tasks:
            with contextlib.suppress(StoreError, asyncio.CancelledError):
                task.result()

    async def shut_down(self) -> None:
        """Releases first; the caller drains its streams afterwards and then calls `finish`."""
        crew = self._crew
        crew.gate.shutting_down = True
        crew.gate.changed()
        await self.give_back("shutdown")
        crew.keeper.stop()
        with contextlib.suppress(StoreError):
            await crew.roster.leave()

    async def finish(self) -> None:
        """The last counters and the last checkpoint, when the streams have ended."""
        await self._farewell(self._crew.flusher.flush(), self._crew.saver.save())
