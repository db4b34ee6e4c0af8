"""What a lifecycle document says of an order that is waited for. Pure: documents in, sentences out.

| of a drain | verdict |
| --- | --- |
| a target that the document does not list | not done: nothing is known of it (`absent`) |
| every target `ready_to_stop` (of a wave: the wave) | done |
| a target `deadline_exceeded` | not done: it stays out, its work goes on |
| a target in service | not done: somebody readmitted it, or the record was lost |
| else | none yet |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

Fields = Mapping[str, Any]

MOST: Final = 6
"""Engines, or groups of engines, that a line tells one by one."""
COMING: Final = frozenset({"health", "attestation"})
"""Checks that fail while an engine, or the sidecar that follows it, has not come up."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The engines of an order; `wave`: the whole fleet as one, `engines` those that were heard of so far."""

    engines: tuple[str, ...]
    wave: bool = False

    def rows(self, document: Fields) -> dict[str, Fields]:
        """Engine ID to its record. An engine that the fleet does not have is left out."""
        rows: Mapping[str, Fields] = document["engines"]
        return {iid: rows[iid] for iid in (rows if self.wave else self.engines) if iid in rows}

    def absent(self, document: Fields) -> list[str]:
        """Those that the document does not list: the fleet file of its router lacks them."""
        return [iid for iid in self.engines if iid not in document["engines"]]

    def grown(self, document: Fields) -> Targets:
        """Of a wave: with every engine that the document lists. None of them may vanish later."""
        return (
            replace(self, engines=tuple({**dict.fromkeys(self.engines), **document["engines"]}))
            if self.wave
            else self
        )

    @property
    def words(self) -> str:
        return "the whole fleet" if self.wave else _listed(self.engines)

    def be(self, one: str, many: str) -> str:
        """The verb behind `words`."""
        return one if self.wave else _for(self.engines, one, many=many)


@dataclass(frozen=True, slots=True)
class Verdict:
    done: bool
    sentence: str


def absent(targets: Targets, document: Fields, *, url: str) -> Verdict | None:
    """Of a router that owns and lacks a target: nobody sees what that engine does. None: it has them all."""
    unknown = targets.absent(document)
    if not unknown:
        return None
    names = _listed(unknown)
    return Verdict(
        False,
        f"the owner, {url}, does not have {names} in its fleet file: what {names} does is not known there. "
        f"Mend that file, or let a router own that has {names} (narwhal cluster yield --to, or stop this "
        "owner), and repeat",
    )


def carried(document: Fields) -> dict[str, str]:
    """A sentence for each engine that the router keeps a word of and does not have in its fleet file; one of
    an earlier version tells none."""
    lines: dict[str, str] = {}
    for iid, row in document.get("carried", {}).items():
        states = ["" if row["state"] == "active" else _state(row)]
        states += [name for name in ("ejected", "held") if row[name]]
        kept = " and ".join(filter(None, states))
        lines[iid] = f"{iid} is not in this router's fleet file, and stays {kept}"
    return lines


def drain_verdict(targets: Targets, document: Fields) -> Verdict | None:
    """None: wait on. Also where a target is not listed: that is for `absent`."""
    if targets.absent(document):
        return None
    rows = targets.rows(document)
    stoppable = [iid for iid, row in rows.items() if row["ready_to_stop"]]
    if document["wave"]["ready_to_stop"] if targets.wave else len(stoppable) == len(rows):
        return Verdict(True, f"{targets.words} may be stopped now")
    serving = [iid for iid, row in rows.items() if row["state"] == "active"]
    if serving:
        reason = "readmitted meanwhile, or the drain was lost with its router"
        return Verdict(
            False, f"{_listed(serving)} {_for(serving, 'is', many='are')} not drained any more: {reason}"
        )
    late = past_deadline(targets, document)
    if late:
        stay = _for(late, "stays out of placement and its", many="stay out of placement and their")
        return Verdict(
            False,
            f"the deadline passed: {_listed(late)} {stay} work goes on ("
            + "; ".join(_for(late, "", many=f"{iid}: ") + _work(rows[iid]) for iid in late)
            + "); drain again with a later --deadline to wait on",
        )
    return None


def out_of_placement(targets: Targets, document: Fields) -> bool:
    """Every target is drained, whatever it does still."""
    rows = targets.rows(document)
    return not targets.absent(document) and all(row["state"] != "active" for row in rows.values())


def past_deadline(targets: Targets, document: Fields) -> list[str]:
    """Targets whose deadline has passed while work was left."""
    return [iid for iid, row in targets.rows(document).items() if row["state"] == "deadline_exceeded"]


def readmitted(targets: Targets, document: Fields) -> Verdict | None:
    """Done where every target serves again, else None: nobody does while the whole fleet is held."""
    rows = targets.rows(document)
    if document["wave"]["readiness_withdrawn"] or not rows or targets.absent(document):
        return None
    if any(row["state"] != "active" for row in rows.values()):
        return None
    counts = [_passed(iid, row) for iid, row in rows.items()]
    return Verdict(True, f"{targets.words} {targets.be('is', 'are')} in service again: " + "; ".join(counts))


def failed_checks(targets: Targets, document: Fields) -> dict[str, str]:
    """Engine ID to the check that blocks it; may be empty."""
    return {
        iid: check["name"]
        for iid, row in targets.rows(document).items()
        if row["state"] != "active"
        for check in row["checks"]
        if check["outcome"] == "failed"
    }


def progress(targets: Targets, document: Fields, *, countdown: bool) -> str:
    """How far the targets are, those that are alike together. Of many unlike ones the states are counted.
    `countdown`: with the seconds that are left."""
    alike: dict[str, list[str]] = {}
    rows = targets.rows(document)
    for iid, row in rows.items():
        alike.setdefault(_progress(row, countdown=countdown), []).append(iid)
    if len(alike) > MOST:
        alike = {}
        for iid, row in rows.items():
            alike.setdefault(_state(row), []).append(iid)
    if unknown := targets.absent(document):
        alike["not in the fleet file of the router that owns"] = unknown
    return "; ".join(f"{_named(iids)} {words}" for words, iids in alike.items())


def _named(iids: Sequence[str]) -> str:
    return _listed(iids) if len(iids) <= MOST else f"{len(iids)} engines"


def _state(row: Fields) -> str:
    return str(row["state"]).replace("_", " ")


def _progress(row: Fields, *, countdown: bool) -> str:
    words = [_state(row)]
    if row["ready_to_stop"]:
        words.append("may be stopped")
    elif row["state"] in ("draining", "deadline_exceeded"):
        words.append(_work(row))
    if row["state"] == "draining" and countdown and row["deadline_in_s"] is not None:
        words.append(f"{row['deadline_in_s']:.0f} s left")
    return ", ".join(words)


def _work(row: Fields) -> str:
    legs = {name: row["resident"][name] for name in ("prefill", "decode") if row["resident"][name]}
    if row["old_process_start"] is None:
        return "which process it is is not on record yet"
    if legs:
        return "resident " + ", ".join(f"{name} {count}" for name, count in legs.items())
    return "nothing resident, its own requests and held KV run out"


def _passed(iid: str, row: Fields) -> str:
    outcomes = [check["outcome"] for check in row["checks"]]
    skipped = [check["name"] for check in row["checks"] if check["outcome"] == "skipped"]
    words = f"{iid} passed {outcomes.count('passed')} checks"
    return words + (f", {_listed(skipped)} skipped" if skipped else "")


def _for(names: Sequence[str], one: str, *, many: str) -> str:
    return one if len(names) == 1 else many


def _listed(names: Sequence[str] | Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
