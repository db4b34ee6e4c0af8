"""Judges whether this router may take new work, and says why not (http-api.md sections 2 and 3).

| reason, by precedence | control_ready |
| --- | --- |
| shutting down | false |
| fenced: <why> | false |
| lease store unavailable | false |
| standby | false |
| monitoring degraded: <stage> <class> | false |
| whole-wave ... | true |
| awaiting engine identity | true |
| no available engines | true |
"""

from __future__ import annotations

from dataclasses import dataclass

from narwhal.model.control import ControlStatus, Health, HealthStatus, Readiness, RouterRole

SHUTTING_DOWN = "shutting down"
STORE_UNAVAILABLE = "lease store unavailable"
STANDBY = "standby"
AWAITING_IDENTITY = "awaiting engine identity"
NO_ENGINES = "no available engines"


@dataclass(frozen=True, slots=True)
class ReadinessFacts:
    """Everything that bears on readiness at one instant.

    `monitoring` is the degraded reason, "" while monitoring is sound. `wave` is the whole-wave reason
    sentence, "" for none. `serves_prefill` and `serves_decode`: at least one eligible engine for the leg.
    """

    control: ControlStatus
    monitoring: str
    serves_prefill: bool
    serves_decode: bool
    wave: str = ""
    awaiting_identity: bool = False


def judge(facts: ReadinessFacts) -> Readiness:
    """The whole answer of /ready. Pure; a few microseconds."""
    control = facts.control
    why_no_control = _why_no_control(control) or facts.monitoring
    reason = why_no_control or _why_no_work(facts)
    standby = control.role is not RouterRole.ACTIVE
    return Readiness(
        ready=not reason,
        control_ready=not why_no_control,
        reason=reason,
        epoch=control.epoch,
        holder=control.holder,
        role=control.role,
        owner=control.owner,
        ready_to_take=standby and control.ready_to_take,
        drift=control.drift if standby else (),
    )


def _why_no_control(control: ControlStatus) -> str:
    if control.shutting_down:
        return SHUTTING_DOWN
    if control.role is RouterRole.FENCED:
        return f"fenced: {control.fenced_why}"
    if control.may_admit:
        return ""
    # Also an owner that has closed admission to hand the lease over.
    return STANDBY if control.store.reachable else STORE_UNAVAILABLE


def _why_no_work(facts: ReadinessFacts) -> str:
    if facts.wave:
        return facts.wave
    if facts.awaiting_identity:
        return AWAITING_IDENTITY
    if not (facts.serves_prefill and facts.serves_decode):
        return NO_ENGINES
    return ""


def judge_health(facts: ReadinessFacts, *, instances: int, available: int) -> Health:
    """The answer of /health: who we are before how we are. `degraded`: active but not ready."""
    readiness = judge(facts)
    if readiness.role is RouterRole.STANDBY:
        status = HealthStatus.STANDBY
    elif readiness.role is RouterRole.FENCED:
        status = HealthStatus.FENCED
    elif readiness.ready:
        status = HealthStatus.OK
    else:
        status = HealthStatus.MAINTENANCE if readiness.reason == facts.wave else HealthStatus.DEGRADED
    return Health(status=status, instances=instances, available_instances=available)
