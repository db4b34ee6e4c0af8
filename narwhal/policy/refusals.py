"""Engines that refuse whatever they are asked (failures.md section 9, "A misconfigured engine"). Pure.

| engine | event | next |
| --- | --- | --- |
| sound | 4xx to a request | refusing, that one request |
| refusing n requests | 4xx to one of them again | refusing n requests |
| refusing n requests | 4xx to another one | refusing n + 1; from `eject_after` on suspected, each time |
| any | a 2xx; a good probe | sound |
| sound, proved less than 10 s ago | 400, 413 or 422 | sound: our own request went well, it is the clients' |
| refusing with these alone, proved less than 60 s ago | one of these | suspected, and not to be held |

Each good probe of an engine that refuses proves it anew: whoever goes on with bad requests has it looked at,
and not held. A row with any other status in it is the set-up's: it holds, however lately it was proved.
A 408 or 429 is back-pressure and no answer of this kind; our own 409 `stale_epoch` never comes here.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from math import inf

from narwhal.errors import InvariantViolation
from narwhal.model.evidence import LegAnswered
from narwhal.policy.faults import BACK_PRESSURE

PROVED_S = 10.0
"""Seconds for which a good probe answers for an engine that clients with bad requests made suspect."""
SPARED_S = 60.0
"""Seconds for which more bad requests may ask for another probe, and hold nobody."""
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


@dataclass(frozen=True, slots=True)
class Refused:
    """Why an engine is suspected. `of_clients`: every status was one about the request; `hold`: until a probe
    of it has passed it is not to be used."""

    reason: str
    of_clients: bool
    hold: bool


@dataclass(slots=True)
class _Row:
    requests: set[bytes] = field(default_factory=set)
    of_clients: bool = True


class Refusals:
    """Who refuses now. An engine that refuses nothing has no entry, so good news cost a look-up."""

    __slots__ = ("_eject_after", "_proved", "_refused")

    def __init__(self, *, eject_after: int) -> None:
        self._eject_after = eject_after
        self._refused: dict[str, _Row] = {}
        self._proved: dict[str, float] = {}

    def answered(self, evidence: LegAnswered, now: float) -> Refused | None:
        """Takes an answer that is no 200; None: the engine is not suspected."""
        iid, status = evidence.iid, evidence.status
        proved_at = self._proved.get(iid, -inf)
        about_it = status in ABOUT_REQUESTS
        if about_it and now < proved_at + PROVED_S:
            return None
        row = self._refused.setdefault(iid, _Row())
        row.of_clients = row.of_clients and about_it
        if len(row.requests) < self._eject_after:
            row.requests.add(evidence.request)
        if len(row.requests) < self._eject_after:
            return None
        reason = f"{len(row.requests)} different requests in a row were refused, the last with {status}"
        spared = row.of_clients and now < proved_at + SPARED_S
        return Refused(reason, row.of_clients, hold=not spared)

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
        for iid, row in self._refused.items():
            if not 0 < len(row.requests) <= self._eject_after:
                raise InvariantViolation(f"{iid}: {len(row.requests)} refused requests remembered")
