"""The checks at start that need the store (the table of cluster.md section 7).

A store that does not answer is asked again for ever, 0.25 to 2 s apart with jitter: meanwhile this router
is not ready and never owner.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from narwhal.clock import Clock
from narwhal.cluster.mirror import Mirror
from narwhal.cluster.roster import TAKEN
from narwhal.cluster.trouble import Troubles
from narwhal.errors import (
    ConfigError,
    SavedStateError,
    StoreDamaged,
    StoreProtocolError,
    StoreUnreachable,
)
from narwhal.model.handoff import LOG_START, CheckpointRecord, StoredHandoff
from narwhal.model.leadership import Remembered
from narwhal.model.lease import LeaseState
from narwhal.model.process import ProcessMark
from narwhal.model.request import Counters
from narwhal.model.store_call import RouterEntry
from narwhal.policy.death import ProcessSight, proves_death
from narwhal.policy.takeover import CHECKPOINT, STORE, SavedState, from_checkpoint, from_store, salvaged
from narwhal.ports import Checkpoint, HandoffStore, LeaseStore, Recorder, Registry

log = logging.getLogger("narwhal.cluster")
R = TypeVar("R")

PAUSES_S = (0.25, 2.0)
CALL_S = 0.8
PREDECESSOR_S = 16.0
"""A dead router's entry lives 15 s after its last word."""
SILENT_S = 6.0
"""Three announcements missed."""
POLL_S = 0.5
DEAD = "its process (pid {pid}) has ended"


@dataclass(frozen=True, slots=True)
class StartRules:
    cluster: str
    router_id: str
    run: str
    engines: tuple[str, ...]
    model: str
    resume: bool
    process: ProcessMark


@dataclass(frozen=True, slots=True)
class StartPorts:
    """`look`: what this system says of a PID, for the proof of a predecessor's death."""

    record: LeaseStore
    handoffs: HandoffStore
    registry: Registry
    look: Callable[[int], ProcessSight]
    clock: Clock
    recorder: Recorder
    jitter: Callable[[], float]


class SavedFile:
    """The local checkpoint as read once. `record` is None where there is none or it cannot be read, `state`
    also where its document is bad (`problem`)."""

    def __init__(self, checkpoint: Checkpoint, *, boot_id: str, clock: Clock) -> None:
        self.record: CheckpointRecord | None = None
        self.state: SavedState | None = None
        self.problem: SavedStateError | None = None
        try:
            self.record = checkpoint.read()
            if self.record is not None and self.record.document:
                self.state = from_checkpoint(self.record, boot_id=boot_id, now=clock.now())
        except SavedStateError as error:
            self.problem = error

    @property
    def totals(self) -> Mapping[str, Counters]:
        return self.record.totals if self.record else {}

    @property
    def remembered(self) -> Remembered:
        """A document from the cluster counts as having seen an owner, one of local control does not."""
        record = self.record
        if record is None:
            return Remembered()
        epoch = max(record.epoch_floor, self.state.document.epoch if self.state else 0)
        return Remembered(epoch, record.ttl_ms_max, saw_owner=epoch > 0)


class StartChecks:
    """Run once, beside the keeper's first peeks."""

    def __init__(self, rules: StartRules, ports: StartPorts, *, file: SavedFile, mirror: Mirror) -> None:
        self._rules = rules
        self._ports = ports
        self._mirror = mirror
        self.file = file

    async def check(self) -> None:
        """Returns when this router may compete. Raises ConfigError: the ID is taken; SavedStateError:
        another fleet's cluster, or `--resume` with nothing that can be resumed from."""
        state = self.file.state
        if state is not None and not set(self._rules.engines).isdisjoint(state.document.engines):
            # Also without `resume`: a standby's own file is written from its mirror, and must not lose what
            # it holds before somebody owns.
            self._mirror.preload(state)
        await self._await_predecessor()
        stored = await self._asked(self._stored)
        self._judge(stored, owned=await self._living_epoch())

    async def _stored(self) -> StoredHandoff | SavedStateError | None:
        """What cannot be read as a record is as good as a torn document."""
        try:
            return await self._ports.handoffs.load(timeout_s=CALL_S)
        except StoreDamaged as error:
            return SavedStateError(str(error))

    async def _living_epoch(self) -> int:
        """Of the present owner if its entry says that it lives, 0 for none."""
        view = await self._asked(lambda: self._ports.record.peek(timeout_s=CALL_S))
        if view.state is not LeaseState.HELD:
            return 0
        lives = await self._asked(lambda: self._ports.registry.entry(view.owner, timeout_s=CALL_S))
        return view.epoch if lives else 0

    def _judge(self, stored: StoredHandoff | SavedStateError | None, *, owned: int) -> None:
        """`owned`: the epoch of an owner that lives. What one left that has ended may be of another model:
        that is how a fleet changes it."""
        bad_store = stored if isinstance(stored, SavedStateError) else None
        state: SavedState | None = None
        try:
            state = from_store(stored) if isinstance(stored, StoredHandoff) else None
        except SavedStateError as error:
            bad_store = error
        if state is not None and set(self._rules.engines).isdisjoint(state.document.engines):
            shown = ", ".join(state.document.engines[:4])
            raise SavedStateError(
                f"cluster {self._rules.cluster} serves another fleet (e.g. {shown}): pass --cluster"
            )
        if state is not None and state.document.epoch == owned and state.document.model != self._rules.model:
            raise SavedStateError(
                f"cluster {self._rules.cluster} serves another fleet: its owner serves the model "
                f'"{state.document.model}", this fleet file is for "{self._rules.model}": pass --cluster'
            )
        resumable = state is not None or self.file.state is not None
        problems = [problem for problem in (self.file.problem, bad_store) if problem is not None]
        if self._rules.resume and not resumable and not problems:
            log.warning("there is no saved state, neither here nor in the store: starting fresh")
        for problem in problems:
            if self._rules.resume and not resumable:
                raise problem
            log.warning("saved state is left: %s", problem)
            self._ports.recorder.event("saved_state_left", {"error": str(problem)})
        if not resumable:
            self._take_safely(bad_store, stored)

    def _take_safely(
        self, bad_store: SavedStateError | None, stored: StoredHandoff | SavedStateError | None
    ) -> None:
        """Nothing good is saved: what can be read of it still keeps out whom an operator took out."""
        upto = stored.upto if isinstance(stored, StoredHandoff) else LOG_START
        left = [salvaged(bad_store, source=STORE, upto=upto)] if bad_store else []
        left += [salvaged(self.file.problem, source=CHECKPOINT)] if self.file.problem else []
        ours = [one for one in left if one and not set(self._rules.engines).isdisjoint(one.document.engines)]
        if ours:
            newest = max(ours, key=lambda one: one.order)
            log.warning("what can be read of the %s's state is taken with care", newest.source)
            self._mirror.preload(newest)

    async def _await_predecessor(self) -> None:
        """An entry of our ID by another run: it ends (clean exit, its warden, proof of death, or 15 s of
        silence), or the ID is taken.

        Only what is said anew shows life: an entry may outlive its 15 s where Redis's clock was set back.
        """
        clock, first, heard, seen_ms = self._ports.clock, None, 0.0, -1
        while True:
            await self._free_lease()
            entry = await self._predecessor()
            if entry is None or await self._freed(entry):
                return
            now = clock.now()
            first = now if first is None else first
            if entry.seen_ms != seen_ms:
                heard, seen_ms = now, entry.seen_ms
            if now - first >= PREDECESSOR_S:
                if now - heard >= SILENT_S:
                    await self._withdraw(entry)
                    return
                raise ConfigError(TAKEN.format(self._rules.router_id))
            await clock.sleep(POLL_S)

    async def _free_lease(self) -> None:
        """Gives back the lease of an owner on this host that has provably ended.

        By the very version that was read before the proof: whoever renewed or took it since is left alone.
        """
        ports = self._ports
        view = await self._asked(lambda: ports.record.peek(timeout_s=CALL_S))
        version, fields = view.version, view.fields or {}
        if view.state is not LeaseState.HELD or version is None:
            return
        mark = ProcessMark.of_record(fields)
        if not self._is_dead(mark):
            return
        freed = await self._asked(
            lambda: ports.record.release(version, reason=DEAD.format(pid=mark.pid), timeout_s=CALL_S)
        )
        if freed is True:
            self._tell_death("its lease", view.owner, mark=mark)

    async def _freed(self, entry: RouterEntry) -> bool:
        """The ID is free: its process has provably ended, and its entry is deleted."""
        if not self._is_dead(entry.process):
            return False
        await self._withdraw(entry)
        self._tell_death("its ID", entry.router_id, mark=entry.process)
        return True

    async def _withdraw(self, entry: RouterEntry) -> None:
        """An entry that stays would refuse our own announcement."""
        await self._asked(lambda: self._ports.registry.withdraw(entry.router_id, entry.run, timeout_s=CALL_S))

    def _is_dead(self, mark: ProcessMark) -> bool:
        return proves_death(mark, self._rules.process, look=self._ports.look)

    def _tell_death(self, freed: str, router_id: str, *, mark: ProcessMark) -> None:
        fields = {"freed": freed, "router_id": router_id, "pid": mark.pid}
        self._ports.recorder.event("proof_of_death", fields)
        log.warning("%(router_id)s (pid %(pid)d here) has ended without a word: %(freed)s is free", fields)

    async def _predecessor(self) -> RouterEntry | None:
        """Asked for by its ID: what the list of routers says keeps nobody from starting."""
        rules = self._rules
        entry = await self._asked(lambda: self._ports.registry.entry(rules.router_id, timeout_s=CALL_S))
        return entry if entry is not None and entry.run != rules.run else None

    async def _asked(self, ask: Callable[[], Awaitable[R]]) -> R:
        """A store that does not answer, or holds what no router wrote, is asked again for ever."""
        pause, longest = PAUSES_S
        troubles = Troubles()
        while True:
            try:
                return await ask()
            except (StoreUnreachable, StoreDamaged) as error:
                troubles.met("start", error)
                await self._ports.clock.sleep(pause * (0.5 + 0.5 * self._ports.jitter()))
                pause = min(2 * pause, longest)
            except StoreProtocolError as error:
                raise ConfigError(f"the store cannot be used: {error}") from error
