"""Claims over the shared store: a standby that suspects the owner puts one, a degraded owner yields to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import inf

from narwhal.clock import Clock
from narwhal.cluster.gate import LeasedGate
from narwhal.cluster.roster import Roster
from narwhal.cluster.trouble import Troubles
from narwhal.errors import StoreError
from narwhal.model.control import OwnerRef
from narwhal.model.handoff import EntryKind, LogEntry
from narwhal.model.leadership import LeaseSight
from narwhal.policy.claims import (
    CLAIM_REASON,
    REPEAT_S,
    Bench,
    Hearing,
    Suspicion,
    Truce,
    judge,
)
from narwhal.ports import Peers, Recorder, Registry

CALL_S = 0.8

Probing = Callable[[], Awaitable[bool]]
"""Probes the engines and opens connections to them; True: they could serve both legs."""


async def engines_pass() -> bool:
    """`Probing` of a router that trusts its engines."""
    return True


@dataclass(frozen=True, slots=True)
class ClaimPorts:
    """`probe` asks the engines without an epoch: a standby's word must not fence the owner."""

    peers: Peers | None
    registry: Registry
    clock: Clock
    recorder: Recorder
    probe: Probing


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """`poll_s`: seconds between polls of the owner. `after`: polls without `control_ready` in a row."""

    router_id: str
    ttl_s: float
    poll_s: float
    after: int


class Claimant:
    """A standby's part, for ever in `run`. Main loop only."""

    def __init__(
        self, ports: ClaimPorts, rules: ClaimRules, *, gate: LeasedGate, roster: Roster, truce: Truce
    ) -> None:
        self._ports = ports
        self._rules = rules
        self._gate = gate
        self._roster = roster
        self._truce = truce
        self._suspicion = Suspicion(rules.after)
        self._suspected = 0
        self._claimed = 0
        """Epoch that a claim of ours is or may be put against, 0 for none: also after no answer."""
        self._told = 0
        """Epoch that the claim of ours is known to be put against."""
        self._put_at = -inf
        self._troubles = Troubles()
        self.failing: Callable[[], bool] = lambda: False
        """Our last checkpoint was not written: we might do no better."""

    async def run(self) -> None:
        """Returns at once for a router that cannot ask others."""
        while self._ports.peers is not None:
            await self._ports.clock.sleep(self._rules.poll_s)
            try:
                if await self.step():
                    self._troubles.over("claim")
            except StoreError as error:
                self._troubles.met("claim", error)

    async def step(self) -> bool:
        """One poll of the owner, and what follows from it. Whether the store was asked. Raises StoreError."""
        owner, epoch = self._gate.stands_by(self._ports.clock.now()), self._gate.sight.epoch
        if owner is None:
            self._suspicion.forget()
            return await self._withdraw()
        peers = self._ports.peers
        told = None if peers is None else await peers.ready(owner.url, timeout_s=CALL_S)
        if self._gate.sight.epoch != epoch:
            return False
        self._suspicion.polled(epoch, told)
        if not self._suspicion.suspects:
            return await self._withdraw()
        self._tell(owner, epoch)
        return self._ports.clock.now() - self._put_at >= REPEAT_S and await self._claim(epoch)

    def _tell(self, owner: OwnerRef, epoch: int) -> None:
        """Once an epoch."""
        if self._suspected != epoch:
            self._suspected = epoch
            fields = {"router_id": owner.router_id, "epoch": epoch, "reason": self._suspicion.reason}
            self._ports.recorder.event("owner_suspected", fields)

    async def _claim(self, epoch: int) -> bool:
        """Put, or repeated; withdrawn while our own engines or our own state would not do."""
        self._put_at = self._ports.clock.now()
        rests = self._truce.silences(self._suspicion.reason, self._put_at)
        fit = self._roster.ready_to_take and not self.failing()
        if rests or not fit or not await self._ports.probe():
            return await self._withdraw()
        self._claimed = epoch
        put = await self._ports.registry.put_claim(
            self._rules.router_id, epoch=epoch, reason=self._suspicion.reason or "suspect", timeout_s=CALL_S
        )
        if put and self._told != epoch:
            self._told = epoch
            self._ports.recorder.event("claim", {"epoch": epoch, "reason": self._suspicion.reason})
        self._claimed = epoch if put else 0
        return True

    async def _withdraw(self) -> bool:
        """Repeated with each poll until the store answers: a claim that stays would move the owner later.

        An acquire deletes all claims, so one of an older epoch is gone already.
        """
        epoch = self._claimed
        asked = bool(epoch) and epoch == self._gate.sight.epoch
        if asked:
            self._put_at = -inf
            await self._ports.registry.put_claim(
                self._rules.router_id, epoch=epoch, reason="", timeout_s=CALL_S
            )
            self._ports.recorder.event("claim_withdrawn", {"epoch": epoch})
        self._claimed = self._told = 0
        return asked


class ClaimCourt:
    """The owner's part. Main loop only."""

    def __init__(
        self, ports: ClaimPorts, rules: ClaimRules, *, gate: LeasedGate, roster: Roster, truce: Truce
    ) -> None:
        self._ports = ports
        self._gate = gate
        self._roster = roster
        self._truce = truce
        self._hearing = Hearing(ttl_s=rules.ttl_s)
        self._told: dict[str, tuple[int, str]] = {}
        self._alone_until = -inf
        self.degraded: Callable[[], str] = lambda: ""
        """Why monitoring is degraded, "" while it is sound."""
        self.ignored = 0
        """Claims seen and not followed, each sight of each."""

    def heard(self, router_id: str) -> None:
        """`router_id` polled our /ready."""
        known = {one.router_id for one in self._roster.routers}
        self._hearing.heard(router_id, self._ports.clock.now(), known=known)

    def judge(self, claims: Mapping[str, str]) -> str:
        """To whom this owner must yield now, "" for nobody. Called with what each renewal brings."""
        now = self._ports.clock.now()
        degraded = self.degraded() or self._unheard(now)
        if not claims or not self._gate.may_admit(now):
            return ""
        fit = {one.router_id for one in self._roster.standbys()}
        bench = Bench(self._gate.epoch, degraded, fit, self._truce.holds(now))
        verdict = judge(claims, bench)
        for claimant, why in (verdict.ignored or {}).items():
            self._ignore(claimant, why)
        if verdict.successor:
            self._truce.began(self._gate.epoch, now, by_us=True)
            fields = {"to": verdict.successor, "epoch": self._gate.epoch, "reason": degraded}
            self._ports.recorder.event("yield_by_claim", fields)
        return verdict.successor

    def resting(self, now: float) -> bool:
        """Nobody claims or yields by claim now: a lease was released by a claim not long ago."""
        return self._truce.holds(now)

    def _unheard(self, now: float) -> str:
        """Counts from when there was a standby to be heard and a lease to be asked about."""
        standbys = {one.router_id for one in self._roster.standbys()}
        if not standbys or not self._gate.may_admit(now):
            self._alone_until = now
        return "unheard" if self._hearing.unheard(standbys, now, since=self._alone_until) else ""

    def _ignore(self, claimant: str, why: str) -> None:
        """Counted each time, told once an epoch and reason."""
        self.ignored += 1
        known = {one.router_id for one in self._roster.routers}
        if claimant in known and self._told.get(claimant) != (self._gate.epoch, why):
            self._told = {one: told for one, told in self._told.items() if one in known}
            self._told[claimant] = (self._gate.epoch, why)
            fields = {"router_id": claimant, "epoch": self._gate.epoch, "reason": why}
            self._ports.recorder.event("claim_ignored", fields)

    def looked(self, sight: LeaseSight) -> None:
        """The lease tells it too, to a router whose log is trimmed or silent and to one that starts later."""
        if sight.claim_epoch:
            self._truce.began(sight.claim_epoch, self._ports.clock.now() - sight.claim_age_s)

    def saw(self, entry: LogEntry) -> None:
        """A release by a claim, whoever's, begins a truce for all who read of it."""
        if entry.kind is EntryKind.RELEASED and entry.body.get("reason") == CLAIM_REASON:
            self._truce.began(entry.position.epoch, self._ports.clock.now())
