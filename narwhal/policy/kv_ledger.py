"""KV blocks that producers hold until a decode engine has pulled them (failures.md section 10). Pure.

| a KV handoff | event | next |
| --- | --- | --- |
| - | its prefill completed | held by its producer until the KV lease ends |
| held | the first token of a decode elsewhere; that engine refused the request (4xx) | released |
| held | the KV lease ended | orphaned: nobody came for the blocks |
| held, told by a handoff | the KV lease ended | over: whether it was pulled nobody here knows |
| released, orphaned | anything | unchanged |

A decode on the producer itself pulls nothing: its blocks stay held to the lease's end too.

The lease is the engines' own: 30 s by default (vLLM's `kv_lease_duration`). `serving.handoff_timeout_s` is a
lease less a sixth, so that one above 25 s tells of a longer lease.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

from narwhal.errors import InvariantViolation

LEASE_S = 30.0
MOST = 65536
"""Handoffs held at once, over all producers; with more the oldest are left out."""
_STEP_S = 5.0
"""Handoffs that end within so many seconds travel as one row."""
_FIELDS = ("handoffs", "tokens", "work", "remaining_s")


def lease_s(handoff_timeout_s: float) -> float:
    """Seconds that producers hold blocks for, as far as the configuration tells."""
    return max(LEASE_S, handoff_timeout_s * 6 / 5)


# Not frozen, like all that is made several times a request: a frozen one costs thrice as much to make.
@dataclass(slots=True)
class Held:
    """KV handoffs of one producer. `tokens`: their prompts', `work`: their predicted prefills, in the
    unit of the prefill cost. `orphaned` counts since the start."""

    handoffs: int = 0
    tokens: int = 0
    work: float = 0.0
    orphaned: int = 0


@dataclass(slots=True)
class _Entry:
    iid: str
    until: float
    tokens: int
    work: float
    handoffs: int = 1
    told: bool = False
    """By a handoff document."""


class KvLedger:
    """Held handoffs, the next to end first. `by_engine` has every configured engine."""

    __slots__ = ("_entries", "_lease_s", "_restored", "by_engine")

    def __init__(self, engines: Iterable[str], *, lease_s: float) -> None:
        self._lease_s = lease_s
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._restored = 0
        self.by_engine: Mapping[str, Held] = {iid: Held() for iid in engines}

    def charge(self, ticket: int, iid: str, *, tokens: int, work: float, now: float) -> None:
        """The prefill `ticket` (positive, never used before) completed on `iid`."""
        self._add(ticket, _Entry(iid, now + self._lease_s, tokens, work))

    def release(self, ticket: int) -> str:
        """The blocks were pulled, or given up by the decode engine. Whose they were, "" if not held."""
        entry = self._entries.pop(ticket, None)
        if entry is None:
            return ""
        self._take(entry)
        return entry.iid

    def expire(self, now: float) -> tuple[str, ...]:
        """Ends what the lease has ended; the producers that hold less now, may be empty."""
        over: dict[str, None] = {}
        while self._entries:
            ticket, entry = next(iter(self._entries.items()))
            if entry.until > now:
                break
            del self._entries[ticket]
            self._take(entry)
            if not entry.told:
                self.by_engine[entry.iid].orphaned += entry.handoffs
            over[entry.iid] = None
        return tuple(over)

    def next_end(self) -> float:
        """When the next lease ends, inf without any."""
        return next(iter(self._entries.values())).until if self._entries else inf

    def _add(self, ticket: int, entry: _Entry) -> None:
        if len(self._entries) >= MOST:
            _, oldest = self._entries.popitem(last=False)
            self._take(oldest)
        self._entries[ticket] = entry
        held = self.by_engine[entry.iid]
        held.handoffs += entry.handoffs
        held.tokens += entry.tokens
        held.work += entry.work

    def _take(self, entry: _Entry) -> None:
        held = self.by_engine[entry.iid]
        held.handoffs -= entry.handoffs
        held.tokens -= entry.tokens
        # Sums of floats drift; an engine that holds nothing has exactly no work.
        held.work = max(0.0, held.work - entry.work) if held.handoffs else 0.0

    # --- what travels ----------------------------------------------------------------------------

    def export(self, now: float) -> dict[str, list[dict[str, Any]]]:
        """For the handoff's `kv_ledger`: engine ID to held handoffs, those that end together in one row."""
        rows: dict[str, dict[int, list[_Entry]]] = {}
        for entry in self._entries.values():
            if entry.until > now:
                steps = rows.setdefault(entry.iid, {})
                steps.setdefault(ceil((entry.until - now) / _STEP_S), []).append(entry)
        return {
            iid: [
                {
                    "handoffs": sum(entry.handoffs for entry in entries),
                    "tokens": sum(entry.tokens for entry in entries),
                    "work": round(sum(entry.work for entry in entries), 6),
                    "remaining_s": max(round(max(entry.until for entry in entries) - now, 3), 0.001),
                }
                for _, entries in sorted(steps.items())
            ]
            for iid, steps in sorted(rows.items())
        }

    def restore(self, told: object, now: float) -> None:
        """Replaces what an earlier handoff told by what this one does; own handoffs stay.

        What has no time left, or cannot be read, is left out.
        """
        for ticket in [ticket for ticket, entry in self._entries.items() if entry.told]:
            self._take(self._entries.pop(ticket))
        entries = [entry for entry in _entries(told, now) if entry.iid in self.by_engine]
        for entry in entries[:MOST]:
            self._restored -= 1
            entry.until = min(entry.until, now + self._lease_s)
            self._add(self._restored, entry)
        in_order = sorted(self._entries.items(), key=lambda item: item[1].until)
        self._entries = OrderedDict(in_order)

    def check_invariants(self) -> None:
        """Raises InvariantViolation unless the sums are those of the entries, which end in order."""
        if len(self._entries) > MOST:
            raise InvariantViolation(f"KV ledger: {len(self._entries)} handoffs held")
        ends = [entry.until for entry in self._entries.values()]
        if ends != sorted(ends):
            raise InvariantViolation("KV ledger: leases out of order")
        for iid, held in self.by_engine.items():
            own = [entry for entry in self._entries.values() if entry.iid == iid]
            counts = (sum(entry.handoffs for entry in own), sum(entry.tokens for entry in own))
            if (held.handoffs, held.tokens) != counts or held.work < 0.0:
                raise InvariantViolation(f"{iid}: held KV differs from its entries")


def _entries(told: object, now: float) -> Iterable[_Entry]:
    """The rows of every engine that can be read."""
    for iid, rows in told.items() if isinstance(told, Mapping) else ():
        for row in rows if isinstance(rows, list | tuple) else ():
            values: list[Any] = [row.get(name) for name in _FIELDS] if isinstance(row, Mapping) else [None]
            if all(type(value) in (int, float) and 0 <= value < inf for value in values):
                handoffs, tokens, work, left = values
                if handoffs and left:
                    yield _Entry(str(iid), now + left, int(tokens), float(work), int(handoffs), told=True)
