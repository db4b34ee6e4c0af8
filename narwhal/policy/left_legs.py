"""Engines that give nothing to clients who leave before any limit of ours has passed. Pure.

A stopped core answers `/health`, and `serving.prefill_timeout_s` is longer than most clients wait: without
this nobody would ever fail on such an engine.

| engine | event | next |
| --- | --- | --- |
| heard | a leg that had waited for 5 s or longer for its first sign was left | silent since its dispatch, 1 |
| silent since S, n | the same, the `eject_after`-th or a later one, its limit after S | suspected; heard |
| silent since S, n | the same, else | silent since S, n + 1 |
| silent | a leg ended well, or in any answer; its inference probe was good; it was readmitted | heard |

The limit is how long one leg may take before it counts as a failure (for a prefill `prefill_timeout_s`), and
15 s at least: until then the engine may be computing a long prompt. Not a failure: it adds to no streak and
holds nobody. An engine that is merely slow ends other legs meanwhile.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from narwhal.errors import InvariantViolation
from narwhal.model.evidence import LegFailed, LegLeft
from narwhal.policy.faults import NO_ANSWER

WAITED_S = 5.0
"""A client that leaves sooner tells nothing."""
SILENT_S = 15.0
"""However short the limit is."""


@dataclass(slots=True)
class _Silence:
    since: float
    legs: int = 0


class LeftLegs:
    """Who is silent now. An engine that does well has no entry, so good news cost a look-up."""

    __slots__ = ("_eject_after", "_silent")

    def __init__(self, *, eject_after: int) -> None:
        self._eject_after = eject_after
        self._silent: dict[str, _Silence] = {}

    def left(self, evidence: LegLeft, now: float) -> str:
        """A sentence when the engine is suspected, "" when not."""
        if now - evidence.sent_at < WAITED_S:
            return ""
        silence = self._silent.setdefault(evidence.iid, _Silence(evidence.sent_at))
        silence.since = min(silence.since, evidence.sent_at)
        silence.legs += 1
        silent_s = now - silence.since
        if silence.legs < self._eject_after or silent_s < max(SILENT_S, evidence.limit_s):
            return ""
        self.heard(evidence.iid)
        return f"it gave nothing for {silent_s:.0f} s, and {silence.legs} clients left"

    def failed(self, evidence: LegFailed) -> None:
        """A failure that is an answer is a sign of life, and its streak's matter."""
        if evidence.failure not in NO_ANSWER:
            self.heard(evidence.iid)

    def heard(self, iid: str) -> None:
        if iid in self._silent:
            del self._silent[iid]

    @property
    def silent(self) -> Set[str]:
        """Engines of which something is remembered."""
        return self._silent.keys()

    def check_invariants(self) -> None:
        """Raises InvariantViolation where an entry has no leg."""
        if not all(silence.legs > 0 for silence in self._silent.values()):
            raise InvariantViolation("an engine is silent without a leg that was left")
