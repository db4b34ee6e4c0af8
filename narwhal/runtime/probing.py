"""Whatever looks at engines apart from traffic, wired: control pool, probes, readmission checks, health."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from narwhal.clock import Clock
from narwhal.engine.attestation import EngineIdentities, sidecar_control
from narwhal.engine.control import LeanControl
from narwhal.engine.dialect import make_dialect
from narwhal.engine.wheel import StoodStill
from narwhal.model.effect import ProbeKind
from narwhal.model.placement import Reservation
from narwhal.model.settings import FleetConfig
from narwhal.monitor.group import CohortLook, Group
from narwhal.monitor.identity import CheckedProcesses, IdentityLooks, Questions
from narwhal.monitor.judge import Judge
from narwhal.monitor.liveness import HealthChecks, LivenessStage
from narwhal.monitor.maintenance import Maintenance
from narwhal.monitor.probe_legs import Probed, ProbeLegs
from narwhal.monitor.prober import Prober
from narwhal.monitor.readmission import ReadmissionStage
from narwhal.monitor.readmissions import Looking, Ownership
from narwhal.monitor.validation import (
    NO_ATTESTATION,
    NO_MAINTENANCE,
    Checking,
    Validation,
    attested,
    readmission_steps,
)
from narwhal.policy.accounts import Accounts
from narwhal.policy.fleet import Fleet
from narwhal.policy.kv_ledger import too_old
from narwhal.policy.readmission import TransferPeers, ring, transfer_peers
from narwhal.ports import ControlGate, StatePublisher


@dataclass(frozen=True, slots=True)
class ProbingParts:
    """What probes use: `control` is their pool; `quiet_s` tells how long an engine brought no token."""

    control: LeanControl
    quiet_s: Callable[[str], float]
    fleet: Fleet
    judge: Judge
    gate: ControlGate
    clock: Clock
    stood_still_s: StoodStill


class ProbeBooks:
    """Implements monitor.probe_legs.Books: probes are in the accounts, and not resident."""

    def __init__(
        self, accounts: Accounts, *, taken: Callable[[str], bool], late: Callable[[float], bool]
    ) -> None:
        self.taken = taken
        self.late = late
        self._accounts = accounts
        self.prefills = accounts.probe_prefills
        self.pulled = accounts.pulled
        self.stays = accounts.stays

    def left(self, iid: str, tokens: int, *, since: float) -> Reservation:
        return self._accounts.probe_left(iid, tokens, since=since)


class Probing:
    """`when_restoring` and `when_open` are for takeovers, `when_ended` for the end of an ownership."""

    def __init__(self, config: FleetConfig, parts: ProbingParts) -> None:
        self._config = config
        self._parts = parts
        sidecars = sidecar_control(config.engines, config.engine)
        for pool in (parts.control, sidecars):
            pool.allow_for(parts.stood_still_s)
        self._identities = EngineIdentities(config.engines, parts.control, sidecars=sidecars)
        legs = ProbeLegs(
            parts.control,
            make_dialect(config.engine.dialect, config.engine.connector),
            gate=parts.gate,
            probed=Probed.by(config.engine, model=config.model),
            books=ProbeBooks(parts.fleet.accounts, taken=parts.fleet.upkeep.taken, late=self._late),
        )
        self._ask = Questions(self._identities, legs, timeout_s=config.engine.health_timeout_s)
        looks = None if config.contract is None else IdentityLooks(self._ask, contract=config.contract)
        processes = CheckedProcesses(self._ask)
        attestation = NO_ATTESTATION if looks is None else attested(looks, processes)
        self._checking = using = Checking(legs, processes, config.model, self._peers)
        self._steps = partial(readmission_steps, using, attestation=attestation)
        judge, steps = parts.judge, self._steps(process=NO_MAINTENANCE)
        validation = Validation(steps, start=processes.start)
        self._prober = Prober(legs, validation, sink=judge, streaming=self._streaming, looks=looks)
        self._prober.also(ProbeKind.COHORT, CohortLook(Group(steps, using, ring=self._ring)).look)
        self._checks = HealthChecks(legs, sink=judge, streaming=self._streaming, contracted=looks is not None)
        judge.prober = self._prober
        self._liveness: LivenessStage | None = None

    def maintenance(self, publisher: StatePublisher) -> Maintenance:
        """What carries out orders to drain and readmit, and stores them with `publisher`."""
        config, parts = self._config, self._parts
        looking = Looking(
            self._checking,
            self._ask,
            attested=config.contract is not None,
            steps=lambda process: self._steps(process=process),
            ring=self._ring,
        )
        ownership = Ownership(parts.gate, publisher, parts.clock)
        return Maintenance(looking, ownership, fleet=parts.fleet, judge=parts.judge)

    def stages(self, *, everyone: Callable[[], bool]) -> tuple[ReadmissionStage, LivenessStage]:
        """`everyone()`: this router has an epoch to teach."""
        every, engines = self._config.recovery.liveness_every, self._parts.fleet.engines
        self._liveness = LivenessStage(self._checks, engines=engines, every=every, everyone=everyone)
        return ReadmissionStage(self._parts.judge, self._prober), self._liveness

    @property
    def busy(self) -> bool:
        """A probe or a health check is under way."""
        return self._prober.busy or self._checks.busy

    def when_restoring(self) -> None:
        """First thing in a takeover: engines are to learn the new epoch, and what began before is over."""
        self._prober.abandon()
        self._checks.introduce(self._parts.fleet.engines)
        if self._liveness is not None:
            self._liveness.begin_anew()

    def when_open(self) -> None:
        """A takeover is done: suspects that it brought are probed at once, not in the next pass."""
        self._parts.judge.tick(self._parts.clock.now())

    def when_ended(self) -> None:
        """The ownership is over: what was under way is nobody's evidence."""
        self._prober.abandon()
        self._checks.abandon()

    def _late(self, since: float) -> bool:
        return too_old(since, self._parts.clock.now(), bound_s=self._config.serving.handoff_timeout_s)

    async def aclose(self) -> None:
        await self._identities.aclose()
        await self._parts.control.aclose()

    def _streaming(self, iid: str) -> bool:
        return self._parts.quiet_s(iid) <= self._config.engine.health_timeout_s

    def _peers(self, iid: str) -> TransferPeers:
        fleet = self._parts.fleet
        live = fleet.available(self._parts.clock.now())
        return transfer_peers(iid, fleet.roles(), pinned=set(fleet.pinned()), live=live)

    def _ring(self, members: Sequence[str]) -> list[tuple[str, str]]:
        fleet = self._parts.fleet
        return ring(members, fleet.roles(), pinned=set(fleet.pinned()))
