"""KV blocks that producers hold until a decode engine has pulled them (failures.md section 10). Pure.

| a KV handoff | event | next |
| --- | --- | --- |
| - | its prefill completed | held by its producer until the KV lease ends |
| held | the first token of a decode elsewhere; that engine refused the request (4xx) | released |
| held | its decode runs on the producer itself | held, awaited by nobody |
| held | the KV lease ended | orphaned: nobody came for the blocks |
| held, awaited by nobody | the KV lease ended | over |
| held, told by a handoff | the KV lease ended | over: whether it was pulled nobody here knows |
| held, exported | a handoff is taken | over: that handoff tells of it, if it is still held |
| released, orphaned | anything | unchanged |

A decode on the producer itself pulls nothing: its blocks stay held to the lease's end too, and nobody was to
come for them.

No router sees a prefill complete: what is told here is the earliest moment that it may have been, so that no
lease is over before it is thought to be. Charges need not come in the order of these moments.

The lease is the engines' own: 30 s by default (vLLM's `kv_lease_duration`). `serving.handoff_timeout_s` is a
lease less a sixth, so that one above 25 s tells of a longer lease.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from math import ceil, inf
from typing import Any

from narwhal.errors import InvariantViolation
from narwhal.model.numbers import count, seconds

LEASE_S = 30.0
MOST = 65536
"""Handoffs held at once, over all producers; with more the oldest are left out."""
_STEP_S = 5.0
"""Handoffs travel in rows, one for all that end in the same step of a clock; each is told to its last end."""
_FIELDS = ("handoffs", "tokens", "work", "remaining_s")


def lease_s(handoff_timeout_s: float) -> float:
    """Seconds that producers hold blocks for, as far as the configuration tells."""
    return max(LEASE_S, handoff_timeout_s * 6 / 5)


def too_old(since: float, now: float, *, bound_s: float) -> bool:
    """A handoff whose prefill may have completed at `since` may not be sent to a decode engine any more: its
    blocks may soon be another request's, and nobody would notice."""
    return now - since > bound_s


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
class _Row(Held):
    """Those of one producer that end in one step. `until`: when the last one of them did or does."""

    until: float = 0.0


@dataclass(slots=True)
class _Entry:
    """`told`: by a handoff document. `awaited`: a decode elsewhere pulls it. `sums`: those it is part of."""

    iid: str
    until: float
    tokens: int
    work: float
    handoffs: int = 1
    told: bool = False
    awaited: bool = True
    sums: tuple[Held, ...] = ()


class KvLedger:
    """Held handoffs, the next to end first. `by_engine` has every configured engine."""

    __slots__ = ("_entries", "_exported", "_last_ticket", "_lease_s", "_restored", "_rows", "by_engine")

    def __init__(self, engines: Iterable[str], *, lease_s: float) -> None:
        self._lease_s = lease_s
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._rows: dict[tuple[str, int], _Row] = {}
        """By engine and step of their end: documents are made far more often than they change."""
        self._restored = 0
        self._last_ticket = self._exported = 0
        """Newest own handoff; newest one that a document told of."""
        self.by_engine: Mapping[str, Held] = {iid: Held() for iid in engines}

    def charge(self, ticket: int, iid: str, *, tokens: int, work: float, since: float) -> None:
        """The prefill `ticket` (positive, never used before) completed on `iid`, as early as `since`."""
        self._last_ticket = ticket
        until = since + self._lease_s
        later = list(takewhile(lambda one: self._entries[one].until > until, reversed(self._entries)))
        self._add(ticket, _Entry(iid, until, tokens, work))
        for one in reversed(later):
            if one in self._entries:
                self._entries.move_to_end(one)

    def release(self, ticket: int) -> str:
        """The blocks were pulled, or given up by the decode engine. Whose they were, "" if not held."""
        entry = self._entries.pop(ticket, None)
        if entry is None:
            return ""
        self._take(entry)
        return entry.iid

    def stays(self, ticket: int) -> None:
        """Its decode runs on the producer itself: nobody is to pull it."""
        entry = self._entries.get(ticket)
        if entry is not None:
            entry.awaited = False

    def expire(self, now: float) -> tuple[str, ...]:
        """Ends what the lease has ended; the producers that hold less now, may be empty."""
        over: dict[str, None] = {}
        while self._entries:
            ticket, entry = next(iter(self._entries.items()))
            if entry.until > now:
                break
            del self._entries[ticket]
            self._take(entry)
            if entry.awaited and not entry.told:
                self.by_engine[entry.iid].orphaned += entry.handoffs
            over[entry.iid] = None
        self._rows = {key: row for key, row in self._rows.items() if row.handoffs}
        return tuple(over)

    def next_end(self) -> float:
        """When the next lease ends, inf without any."""
        return next(iter(self._entries.values())).until if self._entries else inf

    def _add(self, ticket: int, entry: _Entry) -> None:
        if len(self._entries) >= MOST:
            _, oldest = self._entries.popitem(last=False)
            self._take(oldest)
        self._entries[ticket] = entry
        key = (entry.iid, ceil(entry.until / _STEP_S))
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row()
        row.until = max(row.until, entry.until)
        entry.sums = (row, self.by_engine[entry.iid])
        for one in entry.sums:
            one.handoffs += entry.handoffs
            one.tokens += entry.tokens
            one.work += entry.work

    def _take(self, entry: _Entry) -> None:
        for one in entry.sums:
            one.handoffs -= entry.handoffs
            one.tokens -= entry.tokens
            # Sums of floats drift; an engine that holds nothing has exactly no work.
            one.work = max(0.0, one.work - entry.work) if one.handoffs else 0.0

    # --- what travels ----------------------------------------------------------------------------

    def export(self, now: float) -> dict[str, list[dict[str, Any]]]:
        """For the handoff's `kv_ledger`: engine ID to rows of held handoffs, those that end first before."""
        self._exported = self._last_ticket
        told: dict[str, list[dict[str, Any]]] = {}
        for (iid, _), row in sorted(self._rows.items()):
            left_s = row.until - now
            if row.handoffs and left_s > 0:
                values = (row.handoffs, row.tokens, round(row.work, 6), max(0.001, round(left_s, 3)))
                told.setdefault(iid, []).append(dict(zip(_FIELDS, values, strict=True)))
        return told

    def restore(self, told: object, now: float) -> None:
        """Replaces what handoffs told, this router's own too, by what this one does; own KV that none of them
        has told of stays.

        What has no time left, or cannot be read, is left out.
        """
        for ticket in [ticket for ticket in self._entries if ticket <= self._exported]:
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
            rows = [row for (name, _), row in self._rows.items() if name == iid]
            told = (sum(row.handoffs for row in rows), sum(row.tokens for row in rows))
            if not (held.handoffs, held.tokens) == counts == told or held.work < 0.0:
                raise InvariantViolation(f"{iid}: held KV differs from its entries")


def _entries(told: object, now: float) -> Iterable[_Entry]:
    """The rows of every engine that can be read."""
    for iid, rows in told.items() if isinstance(told, Mapping) else ():
        for row in rows if isinstance(rows, list | tuple) else ():
            if not isinstance(row, Mapping):
                continue
            handoffs, tokens = count(row.get("handoffs")), count(row.get("tokens"))
            work, left = seconds(row.get("work")), seconds(row.get("remaining_s"))
            if handoffs and tokens is not None and work is not None and left:
                yield _Entry(str(iid), now + left, tokens, work, handoffs, told=True)
