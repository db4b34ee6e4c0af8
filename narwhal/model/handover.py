"""What routers and operators ask of a router, and the answers: yield, pledge, a peer's readiness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from narwhal.model.control import ControlStatus
from narwhal.model.maintenance import WaveView
from narwhal.model.placement import Resident
from narwhal.model.standing import EjectionView


class YieldOutcome(StrEnum):
    DONE = "done"
    """The store has confirmed the release."""
    NOT_OWNER = "not owner"
    """There was nothing to give, or the store did not confirm it."""
    REFUSED = "refused"
    """No such standby, or none ready: nothing was closed."""


@dataclass(frozen=True, slots=True)
class YieldAnswer:
    """`error` is a sentence, "" when done."""

    outcome: YieldOutcome
    error: str = ""


@dataclass(frozen=True, slots=True)
class PledgeQuestion:
    """Asks one voter not to acquire for `ttl_s` seconds. `holder` and `epoch` are the asking owner's."""

    voter: str
    holder: str
    epoch: int
    ttl_s: float
    nonce: str


@dataclass(frozen=True, slots=True)
class PledgeAnswer:
    """`nonce` is the question's. `reason` is "" when pledged."""

    pledged: bool
    reason: str
    nonce: str


@dataclass(frozen=True, slots=True)
class PeerReady:
    """Another router's /ready, as far as a standby asks for it."""

    control_ready: bool
    epoch: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LifecycleView:
    """The engines' planned maintenance at one instant. `lifecycle` is that part of the handoff document
    (a standby's: the mirrored one), `records` has its records under the engines' IDs. `accepts_new` names the
    engines that take new work, `ejections` those that are out by a verdict, `wave` is the whole fleet's.
    `awaited`: engines whose identity is, and why it is not there. `carried`: what the handoff document keeps
    of engines that this router's fleet file does not have. `wall`: Unix seconds of the look."""

    control: ControlStatus
    lifecycle: Mapping[str, Any]
    records: Mapping[str, Mapping[str, Any]]
    accepts_new: tuple[str, ...]
    resident: Mapping[str, Resident]
    wall: float
    ejections: Mapping[str, EjectionView] = field(default_factory=dict)
    wave: WaveView = field(default_factory=WaveView)
    awaited: Mapping[str, str] = field(default_factory=dict)
    carried: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
