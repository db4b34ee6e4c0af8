"""What a handoff tells of engines that this router's fleet file does not have: carried on, not used. Pure.

| a handoff tells, of an engine that is none of ours | becomes |
| --- | --- |
| the record of its drain | carried as it came; one that is too long as blocked, with the drained process |
| its ejection, its inference hold | carried |
| its timed quarantine | carried until its time is over |
| anything else, or what cannot be read | nothing |

A fleet file changes on one router after the other, and back again: what an operator or a verdict said of an
engine must outlive an owner that does not know it (cluster.md, I5). The next owner that has it in its file
finds it in the fields of the handoff where it always stood, and only a readmission there ends it. More than
`MOST` engines are not carried: the drained ones first, then the ejected ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from narwhal.model.fleet_view import FleetState
from narwhal.model.handoff import HandoffDocument
from narwhal.model.maintenance import Captured, DrainRecord, DrainState
from narwhal.model.numbers import unix_time
from narwhal.model.plain_text import shown, to_json
from narwhal.policy.carried_holds import told_quarantines
from narwhal.policy.drain import UNREADABLE, row_of

MOST: Final = 64
"""Engines carried."""
MOST_CHARS: Final = 512
"""Of an engine's ID, and of each reason that is carried."""
MOST_BYTES: Final = 8192
"""Of one record as JSON."""

_WORDS = ("reason", "step", "detail")


@dataclass(frozen=True, slots=True)
class Absent:
    """One engine. `record` as it came; `until`: when its quarantine ends, on this router's clock."""

    record: Mapping[str, Any] | None = None
    ejection: Mapping[str, str] | None = None
    sources: tuple[str, ...] | None = None
    hold: Mapping[str, str] | None = None
    until: float = 0.0
    reason: str = ""

    def view(self, now: float) -> dict[str, Any]:
        """For the lifecycle document."""
        return {
            "state": DrainState.ACTIVE.value if self.record is None else _state(self.record).value,
            "ejected": self.ejection is not None,
            "held": self.sources is not None or self.until > now,
        }


class Absentees:
    """Carries nothing until a document was taken; it is replaced whole by the next one."""

    __slots__ = ("_of", "_ours")

    def __init__(self, engines: Iterable[str]) -> None:
        """`engines`: those of the fleet file."""
        self._ours = frozenset(engines)
        self._of: Mapping[str, Absent] = {}

    def restore(self, document: HandoffDocument, now: float) -> tuple[str, ...]:
        """Sentences for the log, empty when nothing is carried."""
        fields = {name: getattr(document, name) for name in _FIELDS}
        found = read_absent(fields, ours=self._ours, now=now)
        self._of = first_of(found)
        notes = [_note(iid, absent) for iid, absent in self._of.items()]
        if len(found) > MOST:
            told = f"the handoff tells of {len(found)} engines that are not in this fleet file"
            notes.append(f"{told}: {MOST} are carried")
        return tuple(notes)

    def add_to(self, state: FleetState, now: float) -> FleetState:
        """The fleet's part of the handoff, with what is carried."""
        if not self._of:
            return state
        records = [*state.lifecycle.get("records", ()), *self._told("record").values()]
        ejections, sources = self._told("ejection"), self._told("sources")
        held = {iid: one for iid, one in self._of.items() if one.until > now}
        holds = {
            iid: {"kind": "quarantine", "reason": one.reason, "remaining_s": round(one.until - now, 3)}
            for iid, one in held.items()
        }
        return replace(
            state,
            lifecycle={**state.lifecycle, "records": sorted(records, key=lambda row: str(row["engine"]))},
            ejected=tuple(sorted((*state.ejected, *ejections))),
            ejections={**state.ejections, **ejections},
            inference_sources={**state.inference_sources, **sources},
            inference_holds={**state.inference_holds, **self._told("hold")},
            holds={**state.holds, **holds},
        )

    def _told(self, name: str) -> dict[str, Any]:
        told = ((iid, getattr(absent, name)) for iid, absent in self._of.items())
        return {iid: value for iid, value in told if value is not None}


def read_absent(fields: Mapping[str, Any], *, ours: frozenset[str], now: float) -> dict[str, Absent]:
    """What a handoff document, or its fields as JSON, tells of engines that are not `ours`; by ID."""
    lifecycle = fields.get("lifecycle")
    records = _records(lifecycle.get("records") if isinstance(lifecycle, Mapping) else None)
    ejected = {iid for iid in fields.get("ejected", ()) if isinstance(iid, str)}
    ejections, inference = fields.get("ejections", {}), fields.get("inference_holds", {})
    sources, quarantines = fields.get("inference_sources", {}), told_quarantines(fields.get("holds", {}))
    engines = {*records, *ejected, *sources, *quarantines} - ours
    found = {}
    for iid in sorted(one for one in engines if 0 < len(one) <= MOST_CHARS):
        left_s, reason = quarantines.get(iid, (0.0, ""))
        held = iid in sources
        found[iid] = Absent(
            record=records.get(iid),
            ejection=_words(ejections.get(iid), _WORDS) if iid in ejected else None,
            sources=tuple(str(one)[:MOST_CHARS] for one in sources[iid][:MOST]) if held else None,
            hold=_words(inference.get(iid), ("reason", "consumer")) if held else None,
            until=now + left_s,
            reason=shown(reason, most=MOST_CHARS),
        )
    return found


def first_of(found: Mapping[str, Absent]) -> dict[str, Absent]:
    """Those that are carried, by ID."""
    ranked = sorted(sorted(found), key=lambda iid: (found[iid].record is None, found[iid].ejection is None))
    return {iid: found[iid] for iid in sorted(ranked[:MOST])}


def _records(rows: object) -> dict[str, Mapping[str, Any]]:
    """Engine ID to its record, of those that are out."""
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows if isinstance(rows, list | tuple) else ():
        iid = row.get("engine") if isinstance(row, Mapping) else None
        if isinstance(iid, str) and row.get("state") != DrainState.ACTIVE:
            found[iid] = row if len(to_json(row)) <= MOST_BYTES else _short(iid, row)
    return found


def _short(iid: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """What must not be lost of a record that nobody wrote like this."""
    start = unix_time(row.get("old_process_start"))
    captured = None if start is None else Captured(start, "")
    deadline_at = unix_time(row.get("deadline_at"))
    return row_of(DrainRecord(iid, DrainState.BLOCKED, deadline_at, captured=captured, error=UNREADABLE))


def _words(told: object, names: Iterable[str]) -> dict[str, str]:
    words = told if isinstance(told, Mapping) else {}
    return {name: shown(str(words.get(name, "")), most=MOST_CHARS) for name in names}


def _state(row: Mapping[str, Any]) -> DrainState:
    try:
        return DrainState(row.get("state", ""))
    except ValueError:
        return DrainState.BLOCKED


def _note(iid: str, absent: Absent) -> str:
    what = "drain" if absent.record is not None else "ejection" if absent.ejection is not None else "hold"
    return f"{shown(iid)} is not in this fleet file: its {what} is carried for an owner that has it"


_FIELDS = ("lifecycle", "ejected", "ejections", "inference_sources", "inference_holds", "holds")
