"""The records of drained engines: an operator's hold, from the order to the readmission. Pure.

| state | event | next |
| --- | --- | --- |
| active | drain | draining, out of placement |
| draining, deadline_exceeded | drain | draining, its deadline later if that is asked |
| drained, blocked | drain | unchanged |
| validating | drain | draining: the validation is over, its deadline later if that is asked |
| any but active | drain, as a member of a wave | the same, a member from now on |
| any but active | captured, for once | kept until the readmission; if blocked, what is next is said |
| draining, deadline_exceeded | no work is left and the identity is captured | drained, ready to stop |
| drained, blocked | no work is left and the identity is captured | the same, ready to stop |
| draining | its deadline passes | deadline_exceeded: it stays out, its work goes on |
| any but active, validating | begin | validating |
| validating | every check passed | active |
| validating | a check failed, or nothing could be learnt | blocked, with the sentence |
| validating | restored from a handoff | blocked: "validation interrupted" |

There is one way into placement: every check passed, and the engine is a newer process than the drained one.
An attestation that nobody wants and a transfer that has no peer are skipped, nothing else.
Members of a wave come back together (`narwhal.policy.wave`). Deadlines are Unix seconds, not monotonic
ones: an operator set them, and they mean the same to the next owner. They only change a word; nothing is
stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from narwhal.errors import InvariantViolation
from narwhal.model.evidence import Check
from narwhal.model.maintenance import Captured, DrainRecord, DrainState, WorkLeft
from narwhal.model.numbers import unix_time
from narwhal.policy.readmission import ATTESTATION, KV_TRANSFER, ORDER, PASSED, SKIPPED

INTERRUPTED = "validation interrupted: repeat the readmit"
KNOWN_NOW = "stays out: its process is on record now; restart it, then readmit it again"
UNREADABLE = "the record of another owner could not be read: drain or readmit the engine again"

_UNDER_WAY = frozenset({DrainState.DRAINING, DrainState.DEADLINE_EXCEEDED})
_AT_REST = frozenset({DrainState.DRAINED, DrainState.BLOCKED})
"""Where an engine may be stopped."""
_MAY_BE_SKIPPED = frozenset({ATTESTATION, KV_TRANSFER})


class IllegalMove(InvariantViolation):
    """An event that the table does not have: nothing was changed."""


class Drains:
    """One record an engine, of configured engines only. The record of an active engine tells of its last
    readmission until the next drain."""

    __slots__ = ("_records", "version")

    def __init__(self, engines: Iterable[str]) -> None:
        self._records = {iid: DrainRecord(iid) for iid in sorted(engines)}
        self.version = 0
        """Grows with every change of who is out."""

    # --- what is ---------------------------------------------------------------------------------

    def record(self, iid: str) -> DrainRecord:
        return self._records[iid]

    def records(self) -> tuple[DrainRecord, ...]:
        """Of every engine, sorted by ID."""
        return tuple(self._records.values())

    def out(self) -> frozenset[str]:
        """Engines that are drained in any state."""
        return frozenset(iid for iid, record in self._records.items() if record.out)

    def unsettled(self) -> tuple[str, ...]:
        """Engines that are out and not known to be free of work, sorted."""
        return tuple(
            iid
            for iid, record in self._records.items()
            if record.state in _UNDER_WAY | _AT_REST and not record.ready_to_stop
        )

    # --- events ----------------------------------------------------------------------------------

    def drain(self, iid: str, *, deadline_at: float, wave_id: str | None = None) -> bool:
        """Takes the engine out until a readmission, with `wave_id` as a member of that wave. False: it was
        out before, and no validation of it ran."""
        record = self._records[iid]
        if not record.out:
            self._put(DrainRecord(iid, DrainState.DRAINING, deadline_at, wave_id))
            return True
        validating, latest = record.state is DrainState.VALIDATING, record.deadline_at or 0.0
        if validating or (record.state in _UNDER_WAY and deadline_at > latest):
            latest = max(deadline_at, latest)
            record = replace(record, state=DrainState.DRAINING, deadline_at=latest)
        self._put(record if wave_id is None else replace(record, wave_id=wave_id))
        return validating

    def leave_wave(self) -> None:
        """No wave is on: whoever is out is so by itself."""
        for record in self._records.values():
            self._put(replace(record, wave_id=None))

    def captured(self, iid: str, captured: Captured) -> None:
        """The process that the engine is now. Later ones are not the drained one: they change nothing."""
        record = self._of(iid, *(set(DrainState) - {DrainState.ACTIVE}))
        if record.captured is not None:
            return
        # What blocked it is the missing record, or what no longer matters: it has to be restarted first.
        error = f"{iid} {KNOWN_NOW}" if record.state is DrainState.BLOCKED else ""
        self._put(replace(record, captured=captured, error=error))

    def settle(self, iid: str, work: WorkLeft) -> bool:
        """What work is left. True: the engine may be stopped from now on."""
        record = self._records[iid]
        if iid not in self.unsettled() or not work.none or record.captured is None:
            return False
        state = DrainState.DRAINED if record.state in _UNDER_WAY else record.state
        self._put(replace(record, state=state, ready_to_stop=True))
        return True

    def expire(self, wall: float) -> tuple[str, ...]:
        """Whose deadline has passed by now (Unix seconds), sorted; may be empty."""
        over = [
            record
            for record in self._records.values()
            if record.state is DrainState.DRAINING and wall >= (record.deadline_at or 0.0)
        ]
        for record in over:
            self._put(replace(record, state=DrainState.DEADLINE_EXCEEDED))
        return tuple(record.iid for record in over)

    def begin(self, iid: str) -> None:
        """A validation begins."""
        record = self._of(iid, *_UNDER_WAY, *_AT_REST)
        record = replace(record, state=DrainState.VALIDATING, checks=(), error="", new_process_start=None)
        self._put(replace(record, ready_to_stop=False, renewed=True))

    def passed(self, iid: str, checks: tuple[Check, ...], *, process_start: float | None) -> None:
        """Every check passed: the engine serves again."""
        record = self._of(iid, DrainState.VALIDATING)
        if not proves(checks):
            raise IllegalMove(f"{iid}: no readmission without every check")
        self._put(DrainRecord(iid, captured=record.captured, checks=checks, new_process_start=process_start))

    def block(
        self, iid: str, checks: tuple[Check, ...], *, error: str, process_start: float | None = None
    ) -> None:
        """The validation ended without proof: the engine waits for the operator."""
        record = self._of(iid, DrainState.VALIDATING)
        self._put(
            replace(
                record,
                state=DrainState.BLOCKED,
                checks=checks,
                error=error,
                new_process_start=process_start,
            )
        )

    # --- what travels ----------------------------------------------------------------------------

    def export(self) -> list[dict[str, Any]]:
        """The records of engines that are out, by ID."""
        return [row_of(record) for record in self._records.values() if record.out]

    def restore(self, rows: object) -> None:
        """Replaces everything by the records of a handoff. Whether work is left is looked at anew: the owner
        before may still stream there. What cannot be read keeps its engine out all the same."""
        self._records = {iid: DrainRecord(iid) for iid in self._records}
        for row in rows if isinstance(rows, list | tuple) else ():
            iid = row.get("engine") if isinstance(row, Mapping) else None
            if not isinstance(iid, str) or iid not in self._records:
                continue
            if row.get("state") != DrainState.ACTIVE:
                self._records[iid] = _read(iid, row)
        self.version += 1

    def check_invariants(self) -> None:
        for iid, record in self._records.items():
            if record.ready_to_stop and (record.state not in _AT_REST or record.captured is None):
                raise InvariantViolation(f"{iid}: ready to stop while {record.state}")
            if bool(record.error) != (record.state is DrainState.BLOCKED):
                raise InvariantViolation(f"{iid}: {record.state} with the error {record.error!r}")

    # --- inside ----------------------------------------------------------------------------------

    def _of(self, iid: str, *states: DrainState) -> DrainRecord:
        record = self._records[iid]
        if record.state not in states:
            raise IllegalMove(f"{iid} is {record.state}")
        return record

    def _put(self, record: DrainRecord) -> None:
        if self._records[record.iid].out != record.out:
            self.version += 1
        self._records[record.iid] = record


def proves(checks: tuple[Check, ...]) -> bool:
    """Every check was made and passed, or is one that may be skipped and was."""
    names = tuple(check.name for check in checks)
    return names == ORDER and all(
        check.outcome == PASSED or (check.outcome == SKIPPED and check.name in _MAY_BE_SKIPPED)
        for check in checks
    )


def row_of(record: DrainRecord) -> dict[str, Any]:
    """A record as handoff documents have it; one outside a wave has no `wave_id`."""
    captured = record.captured
    row = {} if record.wave_id is None else {"wave_id": record.wave_id}
    return row | {
        "engine": record.iid,
        "state": record.state.value,
        "deadline_at": record.deadline_at,
        "old_process_start": captured.process_start if captured else None,
        "vllm_version": captured.vllm_version if captured else "",
        "attestation_digest": captured.digest if captured else "",
        "new_process_start": record.new_process_start,
        "checks": [asdict(check) for check in record.checks],
        "error": record.error,
        "ready_to_stop": record.ready_to_stop,
    }


def _read(iid: str, row: Mapping[str, Any]) -> DrainRecord:
    try:
        state = DrainState(row["state"])
        checks = tuple(
            Check(str(one["name"]), str(one["outcome"]), str(one.get("detail", "")))
            for one in row.get("checks", ())
        )
        error = str(row.get("error", ""))
    except (KeyError, ValueError, TypeError, AttributeError):
        state, checks, error = DrainState.BLOCKED, (), UNREADABLE
    if state is DrainState.VALIDATING:
        state, error = DrainState.BLOCKED, INTERRUPTED
    wave_id = row.get("wave_id")
    return DrainRecord(
        iid,
        state,
        deadline_at=unix_time(row.get("deadline_at")),
        wave_id=wave_id if isinstance(wave_id, str) else None,
        captured=_captured(row),
        new_process_start=unix_time(row.get("new_process_start")),
        checks=checks,
        error=(error or UNREADABLE) if state is DrainState.BLOCKED else "",
    )


def _captured(row: Mapping[str, Any]) -> Captured | None:
    start = unix_time(row.get("old_process_start"))
    if start is None:
        return None
    return Captured(start, str(row.get("vllm_version", "")), str(row.get("attestation_digest", "")))
