"""What people see of pairs of engines and of the KV between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EdgeView:
    """One edge that is not at rest: it fails, is avoided, or owes a probe since an end was restarted.

    `failures` in a row; `age_s`: seconds since it is avoided, None while it is not; `reason` may be "".
    """

    producer: str
    consumer: str
    failures: int
    avoided: bool
    age_s: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class HeldKv:
    """KV that one producer holds for decodes that have not begun elsewhere.

    `handoffs` of `tokens` prompt tokens in all; `orphaned` since the start: held until the lease ended,
    nobody came.
    """

    handoffs: int
    tokens: int
    orphaned: int
