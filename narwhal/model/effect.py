"""What a step of the fleet asks of its shell: to tell, and to look. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ProbeKind(StrEnum):
    HEALTH = "health"
    INFERENCE = "inference"
    EDGE = "edge"
    READMISSION = "readmission"
    COHORT = "cohort"
    IDENTITY = "identity"


@dataclass(frozen=True, slots=True)
class Told:
    """A transition that people should see: one journal event, one log line, one count.

    `kind`: hold, hold_ended, ejection, readmission, probation, edge_avoided... `fields` has `iid` and the
    `reason`, one sentence. `enforced` is False where a guard kept the verdict from acting; a field too.
    """

    kind: str
    fields: Mapping[str, Any]
    enforced: bool = True


def tell(kind: str, iid: str, *, reason: str, enforced: bool = True, **fields: Any) -> Told:
    """The telling of a transition of one engine. `fields` stand between its ID and the reason."""
    return Told(kind, {"iid": iid, **fields, "reason": reason, "enforced": enforced}, enforced)


def tell_fleet(kind: str, *, reason: str, **fields: Any) -> Told:
    """The telling of a transition of the whole fleet."""
    return Told(kind, {**fields, "reason": reason, "enforced": True})


@dataclass(frozen=True, slots=True)
class ProbeWanted:
    """Look at `iid` now, beside everything else. `producer`: whose KV to pull, "" = its own.

    `consumer`: for an inference probe of a suspect producer, the engine that pulls its KV; "" = itself. A
    decode leg that fails there is the producer's fault only if the consumer does well alone. `number`: which
    asking this is, for whoever matches the answer; it grows; 0 = its answer is not matched. `members`: who
    proves itself together, `iid` the first of them.
    """

    kind: ProbeKind
    iid: str
    producer: str = ""
    consumer: str = ""
    number: int = field(default=0, compare=False)
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestSuspected:
    """The request behind this failure is suspected poison: it is not to be retried."""

    reason: str


Effect = Told | ProbeWanted | RequestSuspected
Effects = tuple[Effect, ...]
NOTHING: Effects = ()
