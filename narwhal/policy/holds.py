"""Holds: what keeps an engine from new requests for a while (failures.md section 3). Pure.

| state | event | next |
| --- | --- | --- |
| free | hold | inference hold |
| free | quarantine until T | quarantine |
| inference hold | hold, quarantine | unchanged, unchanged and quarantine |
| quarantine | quarantine until a later T | until the later T |
| quarantine | now reaches T | free, by itself: whoever asks with that `now` sees it ended |
| inference hold | end (probe good or bad) | free |
| quarantine | end (health or inference check good) | free |
| quarantine | what some failures brought is taken back | for as long as the others brought it, else free |

An engine may have both; the inference hold is the one that is told. Which probe ends an inference hold is
`narwhal.policy.checks`' business.
"""

from __future__ import annotations

from math import inf
from typing import Any

from narwhal.model.standing import HoldKind, HoldView
from narwhal.policy.quarantine import OWN, Account, Cause, Quarantine


class Holds:
    """Who is held now, and why. One entry an engine and kind."""

    __slots__ = ("_inference", "_quarantines")

    def __init__(self) -> None:
        self._inference: dict[str, str] = {}
        self._quarantines: dict[str, Quarantine] = {}

    def hold(self, iid: str, reason: str) -> bool:
        """An inference hold. False: there is one already, its reason stays."""
        if iid in self._inference:
            return False
        self._inference[iid] = reason
        return True

    def is_held(self, iid: str) -> bool:
        """Under an inference hold."""
        return iid in self._inference

    def quarantine(self, iid: str, until: float, *, reason: str, now: float, cause: Cause = OWN) -> bool:
        """A timed hold. False: one was running, it lasts now to the later end."""
        running = self._quarantines.get(iid)
        begins = running is None or running.until <= now
        if running is None or begins:
            running = self._quarantines[iid] = Quarantine()
        running.bring(cause, until, reason=reason)
        return begins

    def take_back(self, iid: str, account: Account) -> bool:
        """What this account brought was not the engine's own. True: there is nothing else for which its
        quarantine should go on."""
        running = self._quarantines.get(iid)
        return running is not None and running.take_back(account)

    def end(self, iid: str, kind: HoldKind) -> bool:
        """Ends a hold early. False: there was none."""
        held: dict[str, Any] = self._inference if kind is HoldKind.INFERENCE else self._quarantines
        return held.pop(iid, None) is not None

    def on(self, iid: str, now: float) -> HoldKind | None:
        """The hold that keeps the engine from new requests at `now`."""
        if iid in self._inference:
            return HoldKind.INFERENCE
        quarantine = self._quarantines.get(iid)
        return HoldKind.QUARANTINE if quarantine is not None and quarantine.until > now else None

    def expired(self, now: float) -> tuple[str, ...]:
        """Forgets the quarantines that are over; whose they were, sorted."""
        over = tuple(sorted(iid for iid, one in self._quarantines.items() if one.until <= now))
        for iid in over:
            del self._quarantines[iid]
        return over

    def next_end(self, now: float) -> float:
        """When the next quarantine ends by itself, after `now`; inf: none does."""
        return min((one.until for one in self._quarantines.values() if one.until > now), default=inf)

    def reasons(self) -> dict[str, str]:
        """Engine under an inference hold to its reason, sorted by ID."""
        return dict(sorted(self._inference.items()))

    def view(self, now: float) -> dict[str, HoldView]:
        """Engine ID to the hold that counts, sorted by ID."""
        views = {
            iid: HoldView(HoldKind.QUARANTINE, one.reason, round(one.until - now, 3))
            for iid, one in self._quarantines.items()
            if one.until > now
        }
        views |= {iid: HoldView(HoldKind.INFERENCE, reason, None) for iid, reason in self._inference.items()}
        return dict(sorted(views.items()))

    # --- what travels ----------------------------------------------------------------------------

    def export(self, now: float) -> dict[str, Any]:
        """Engine ID to its quarantine with the seconds that are left, for the handoff's `holds`."""
        return {
            iid: {
                "kind": HoldKind.QUARANTINE.value,
                "reason": one.reason,
                "remaining_s": round(one.until - now, 3),
            }
            for iid, one in sorted(self._quarantines.items())
            if one.until > now
        }

    def clear(self) -> None:
        self._inference, self._quarantines = {}, {}
