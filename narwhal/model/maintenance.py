"""Planned maintenance of engines: the words and records of drains (failures.md section 8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from narwhal.model.evidence import Check


class DrainState(StrEnum):
    """Where an engine's maintenance stands. Every state but ACTIVE keeps it out of placement."""

    ACTIVE = "active"
    DRAINING = "draining"
    DRAINED = "drained"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    VALIDATING = "validating"
    BLOCKED = "blocked"


class WaveState(StrEnum):
    """Where the whole fleet's maintenance stands. Every state but OFF keeps all engines out of placement."""

    OFF = "off"
    REQUIRED = "required"
    DRAINING = "draining"
    RECOVERING = "recovering"


@dataclass(frozen=True, slots=True)
class WaveView:
    """The wave at one instant. `wave_id`: None before its drain. `readiness_withdrawn`: the whole fleet is
    out; `ready_to_stop`: every member may be stopped; `reason`: why it is out, in the words of `/ready`."""

    wave_id: str | None = None
    active: bool = False
    readiness_withdrawn: bool = False
    ready_to_stop: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Captured:
    """The process that was drained. `process_start`: Unix seconds; `digest`: of its attestation, "" where
    the fleet has no engine contract."""

    process_start: float
    vllm_version: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class WorkLeft:
    """What keeps a drained engine from being stopped. `prefill`, `decode`: resident legs of this router;
    `held_kv`: KV handoffs that nobody has pulled; `running`, `waiting`: the engine's own count, whoever sent
    the requests."""

    prefill: int
    decode: int
    held_kv: int
    running: int
    waiting: int

    @property
    def none(self) -> bool:
        return not (self.prefill or self.decode or self.held_kv or self.running or self.waiting)


@dataclass(frozen=True, slots=True)
class DrainRecord:
    """One engine's maintenance. `deadline_at`: Unix seconds, None for an active engine. `captured`: the
    process before, None until it was read. `error`: why it is blocked, a sentence, else "". `renewed`: a
    readmission has begun since, so that it may be another process; does not travel."""

    iid: str
    state: DrainState = DrainState.ACTIVE
    deadline_at: float | None = None
    wave_id: str | None = None
    captured: Captured | None = None
    new_process_start: float | None = None
    checks: tuple[Check, ...] = ()
    error: str = ""
    ready_to_stop: bool = False
    renewed: bool = field(default=False, compare=False)

    @property
    def out(self) -> bool:
        """The engine takes no new request."""
        return self.state is not DrainState.ACTIVE

    @property
    def alone(self) -> bool:
        """An operator took this engine out, and not with the whole fleet."""
        return self.out and self.wave_id is None

    @property
    def runs_on(self) -> bool:
        """The engine has work, or may have: nobody stops it yet."""
        states = {DrainState.ACTIVE, DrainState.DRAINING, DrainState.DEADLINE_EXCEEDED}
        return self.state in states and not self.renewed


class OrderOutcome(StrEnum):
    """How an order ended: 200, 409 and 503."""

    DONE = "done"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class OrderAnswer:
    """`error`: a sentence, "" when done. `not_durable`: why it could be lost with this router, "" if not."""

    outcome: OrderOutcome
    error: str = ""
    not_durable: str = ""


DEADLINE_S = 300.0
"""Of a drain that names none (http-api.md section 5)."""


@dataclass(frozen=True, slots=True)
class DrainOrder:
    """What an operator asks for. `engines` in the order given; `wave`: the whole fleet."""

    engines: tuple[str, ...]
    wave: bool = False
    deadline_s: float = DEADLINE_S
