"""The checks that an operator's readmission owes, of one engine or of a wave (failures.md section 7).

Each runs as a task of its own: a caller that leaves ends nothing, and one that comes meanwhile waits for the
same one. What it came to is told to `policy.upkeep`, also where it was cancelled: a record must not say for
ever that it is being validated. Its result is why its engine stays out, "" if it serves, as of its own end:
whoever waited for it may look when the next one has begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from narwhal.clock import Clock
from narwhal.errors import IdentityError
from narwhal.model.evidence import Validated
from narwhal.model.identity import SAME_START_S
from narwhal.monitor.group import Edges, Group
from narwhal.monitor.identity import Questions
from narwhal.monitor.judge import Judge
from narwhal.monitor.validation import Checking, Result, Step, Validation
from narwhal.policy.fleet import Fleet
from narwhal.policy.readmission import FAILED, PASSED, PROCESS
from narwhal.ports import ControlGate, StatePublisher

NO_CAPTURE = "which process was drained is not on record: repeat the drain while it runs, then restart it"

_WAVE = ""
"""Key of a wave's task; engines have names."""


@dataclass(frozen=True, slots=True)
class Looking:
    """How engines are looked at. `attested`: they have sidecars. `steps` gives the readmission checks with
    this step as `process`; `ring` tells the transfers that prove a wave."""

    checking: Checking
    identities: Questions
    attested: bool
    steps: Callable[[Step], tuple[Step, ...]]
    ring: Edges


@dataclass(frozen=True, slots=True)
class Ownership:
    """Whether this router may act, and where what it did is kept."""

    gate: ControlGate
    publisher: StatePublisher
    clock: Clock


class Readmissions:
    """Main loop only."""

    def __init__(self, looking: Looking, ownership: Ownership, *, fleet: Fleet, judge: Judge) -> None:
        self._looking = looking
        self._gate = ownership.gate
        self._clock = ownership.clock
        self._fleet = fleet
        self._judge = judge
        steps = looking.steps(Step(PROCESS, self._process))
        self._single = Validation(steps, start=looking.checking.processes.start)
        self._group = Group(steps, looking.checking, ring=looking.ring)
        self._under_way: dict[str, asyncio.Task[str]] = {}
        self._left: set[asyncio.Task[str]] = set()
        """Ended by a drain, and not over yet."""

    def of(self, iid: str) -> asyncio.Task[str]:
        """The validation of one engine: the one under way, else a new one."""
        if iid not in self._under_way:
            self._fleet.upkeep.drains.begin(iid)
            self._begin(iid, self._validate(iid))
        return self._under_way[iid]

    def of_wave(self) -> asyncio.Task[str]:
        """As `of`, of the whole fleet."""
        if _WAVE not in self._under_way:
            self._fleet.upkeep.begin_wave()
            self._begin(_WAVE, self._validate_wave())
        return self._under_way[_WAVE]

    def end(self, iid: str | None) -> None:
        """This engine is drained, None: the whole fleet. Whoever readmits from now on begins a new one."""
        for key in [key for key in self._under_way if iid in (None, key)]:
            task = self._under_way.pop(key)
            self._left.add(task)
            task.add_done_callback(self._left.discard)
            task.cancel()

    def abandon(self) -> None:
        """The ownership is over, or another one begins: what began before is over."""
        for task in self._under_way.values():
            task.cancel()

    async def aclose(self) -> None:
        self.abandon()
        await asyncio.gather(*self._under_way.values(), *self._left, return_exceptions=True)

    # --- inside ----------------------------------------------------------------------------------

    def _begin(self, key: str, work: Coroutine[Any, Any, str]) -> None:
        task = asyncio.create_task(work, name=f"readmit-{key or 'wave'}")
        self._under_way[key] = task
        task.add_done_callback(lambda ended: self._is_under_way(key, ended) and self._under_way.pop(key))

    def _is_under_way(self, key: str, task: asyncio.Task[Any] | None) -> bool:
        """No drain ended it."""
        return self._under_way.get(key) is task

    async def _validate(self, iid: str) -> str:
        told = Validated(iid, (), conclusive=False)
        try:
            told = await self._single.run(iid)
        finally:
            # A drain that ended it has told the record; the next one may be under way by now.
            if self._is_under_way(iid, asyncio.current_task()):
                self._ended(told)
        return self._fleet.upkeep.why_out(iid)

    def _ended(self, told: Validated) -> None:
        now = self._clock.now()
        if not self._gate.may_admit(now):
            told = replace(told, conclusive=False)
        effects = self._fleet.upkeep.validated(told, process_start=told.process_start, now=now)
        self._judge.carry_out(effects, now)

    async def _validate_wave(self) -> str:
        told: dict[str, Validated] = {}
        try:
            told = await self._group.run(self._fleet.engines)
        finally:
            if self._is_under_way(_WAVE, asyncio.current_task()):
                self._wave_ended(told)
        return self._fleet.upkeep.why_out(None)

    def _wave_ended(self, told: Mapping[str, Validated]) -> None:
        now = self._clock.now()
        if not self._gate.may_admit(now):
            told = {iid: replace(one, conclusive=False) for iid, one in told.items()}
        starts = {iid: one.process_start for iid, one in told.items() if one.process_start is not None}
        effects = self._fleet.upkeep.wave_validated(told, process_starts=starts, now=now)
        self._judge.carry_out(effects, now)

    async def _process(self, iid: str) -> Result:
        """Planned maintenance means a restart: the process must be newer than the one on record."""
        captured = self._fleet.upkeep.drains.record(iid).captured
        if captured is None:
            return FAILED, NO_CAPTURE
        try:
            live = await self._looking.identities.live(iid)
        except IdentityError as error:
            return FAILED, str(error)
        self._looking.checking.processes.found(iid, live)
        if live.process_start <= captured.process_start + SAME_START_S:
            return FAILED, f"its process is not newer than the drained one ({live.words}): restart the engine"
        return PASSED, f"{live.words}, the drained one at {captured.process_start!r}"
