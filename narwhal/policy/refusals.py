"""Engines that refuse whatever they are asked (failures.md section 9, "A misconfigured engine"). Pure.

| engine | event | next |
| --- | --- | --- |
| sound | 4xx to a request | refusing, that one request |
| refusing n requests | 4xx to one of them again | refusing n requests |
| refusing n requests | 4xx to another one | refusing n + 1; from `eject_after` on suspected, each time |
| any | a 2xx; a good probe | sound |
| sound, proved less than 10 s ago | 400, 413 or 422 | sound: our own request went well, it is the clients' |

A 408 or 429 is back-pressure and no answer of this kind; our own 409 `stale_epoch` never comes here.
"""

from __future__ import annotations

from collections.abc import Set
from math import inf

from narwhal.errors import InvariantViolation
from narwhal.model.evidence import LegAnswered
from narwhal.policy.faults import BACK_PRESSURE

PROVED_S = 10.0
"""Seconds for which a good probe answers for an engine that clients with bad requests made suspect."""
ABOUT_REQUESTS = frozenset({400, 413, 422})
"""Statuses that may tell of the request alone."""

_LIKELY = {
    401: "its API key is not the one that engine.engine_api_key_env names",
    403: "it, or a proxy before it, does not let this router in",
    404: "the route or the model name is unknown there: compare the engine's url and the fleet's model with "
    "what it serves",
}


def is_refusal(status: int) -> bool:
    """A 4xx that is no back-pressure."""
    return 400 <= status < 500 and status not in BACK_PRESSURE


def why_refused(status: int) -> str:
    """What a refusal of our own request says of the set-up, a clause for an ejection's reason."""
    likely = _LIKELY.get(status)
    return f"it answers {status}" if likely is None else f"it answers {status}: {likely}"


class Refusals:
    """Who refuses now. An engine that refuses nothing has no entry, so good news cost a look-up."""

    __slots__ = ("_eject_after", "_proved", "_refused")

    def __init__(self, *, eject_after: int) -> None:
        self._eject_after = eject_after
        self._refused: dict[str, set[bytes]] = {}
        self._proved: dict[str, float] = {}

    def answered(self, evidence: LegAnswered, now: float) -> str:
        """Takes a 4xx; a sentence when the engine is suspected, "" when not."""
        iid, status = evidence.iid, evidence.status
        if status in ABOUT_REQUESTS and now < self._proved.get(iid, -inf) + PROVED_S:
            return ""
        refused = self._refused.setdefault(iid, set())
        if len(refused) < self._eject_after:
            refused.add(evidence.request)
        if len(refused) < self._eject_after:
            return ""
        return f"{len(refused)} different requests in a row were refused, the last with {status}"

    def succeeded(self, iid: str) -> None:
        """A 2xx."""
        if iid in self._refused:
            del self._refused[iid]

    def proved(self, iid: str, now: float) -> None:
        """Our own known-good request went well."""
        if self._refused.pop(iid, None) is not None:
            self._proved[iid] = now

    def forget(self, iid: str) -> None:
        """It begins anew, after a readmission."""
        self._refused.pop(iid, None)
        self._proved.pop(iid, None)

    @property
    def engines(self) -> Set[str]:
        """Those that refuse now."""
        return self._refused.keys()

    def check_invariants(self) -> None:
        """Raises InvariantViolation where more is remembered than needed."""
        for iid, refused in self._refused.items():
            if not 0 < len(refused) <= self._eject_after:
                raise InvariantViolation(f"{iid}: {len(refused)} refused requests remembered")
