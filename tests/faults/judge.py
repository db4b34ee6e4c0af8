"""What the journal of a case says about the price: requests that should not have been sent or lost."""

from __future__ import annotations

from typing import Any

from tests.faults.play import TAKES_OUT, Seen, ended
from tests.faults.site import EJECT_AFTER

Row = dict[str, Any]
AT_ONCE_S = 0.25
"""Rows and events are stamped at different moments; a verdict that asks first may take so long."""


def failed_on(seen: Seen, iid: str) -> list[Row]:
    """Requests with a failed leg there, by the time of their end."""
    return sorted((row for row in seen.rows if _blames(row, iid)), key=ended)


def _blames(row: Row, iid: str) -> bool:
    return any(failure["iid"] == iid for failure in row["attempt_failures"])


def taken_out_at(seen: Seen, iid: str) -> float | None:
    """Unix seconds of the first verdict that took it out; None: there was none."""
    times = [
        float(row["at"])
        for row in seen.events
        if row["kind"] in TAKES_OUT and row.get("iid") == iid and row.get("enforced", True)
    ]
    return min(times, default=None)


def lost_beyond(seen: Seen, iid: str) -> list[Row]:
    """Failed requests that were neither among the first EJECT_AFTER, nor in flight at the last of these, nor
    in flight when the engine was taken out. What the router's own loop stood still is allowed for.

    Counted from where the streak began anew: when a leg that was under way there still ended well, or when
    a pair was blamed, which has an account of its own.
    """
    out = taken_out_at(seen, iid)
    since = _began_anew(seen, iid, out or 0.0)
    failed = [row for row in failed_on(seen, iid) if ended(row) > since]
    if out is None or len(failed) <= EJECT_AFTER:
        return []
    enough, at_once_s = ended(failed[EJECT_AFTER - 1]), AT_ONCE_S + seen.lag_s
    return [
        row
        for row in failed[EJECT_AFTER:]
        if row["arrived"] > enough + at_once_s and ended(row) < out - at_once_s
    ]


def _began_anew(seen: Seen, iid: str, before: float) -> float:
    """Unix seconds of the last good leg there, or of the last edge into it that was avoided; 0.0: none.

    When a prefill ended is not told: it was not before its request came.
    """
    blamed = [row["at"] for row in seen.events if row["kind"] == "edge_avoided" and row["iid"] == iid]
    served = [row for row in seen.rows if row["terminal"] == "served"]
    decoded = [ended(row) for row in served if row["decode_iid"] == iid]
    prefilled = [row["arrived"] for row in served if row["prefill_iid"] == iid]
    return max((at for at in (*blamed, *decoded, *prefilled) if at < before), default=0.0)


def dispatched_too_late(seen: Seen, iid: str) -> list[Row]:
    """Requests that came while it was out, and were sent there all the same."""
    return [
        row
        for begin, end in _outages(seen, iid)
        for row in seen.rows
        if begin + AT_ONCE_S < row["arrived"] and ended(row) < end and iid in _asked(row)
    ]


def _asked(row: Row) -> set[str]:
    blamed = {failure["iid"] for failure in row["attempt_failures"]}
    return {row["prefill_iid"], row["decode_iid"]} | blamed


def _outages(seen: Seen, iid: str) -> list[tuple[float, float]]:
    """From verdict to return, by the journal; a hold that becomes an ejection goes on."""
    found: list[tuple[float, float]] = []
    causes: dict[str, None] = {}
    begin = 0.0
    for row in seen.events:
        if row.get("iid") != iid or not row.get("enforced", True):
            continue
        cause = str(row.get("hold", "ejection"))
        if row["kind"] in TAKES_OUT:
            begin = begin if causes else float(row["at"])
            causes[cause] = None
        elif row["kind"] in ("hold_ended", "readmission") and causes:
            causes.pop(cause, None)
            if not causes:
                found.append((begin, float(row["at"])))
    return found


def sent_over_avoided_edges(seen: Seen) -> list[Row]:
    """Requests that came after an edge was avoided and crossed it all the same before it was repaired."""
    avoided = {
        (row["producer"], row["iid"]): float(row["at"])
        for row in reversed(seen.events)
        if row["kind"] == "edge_avoided"
    }
    return [
        row
        for row in seen.rows
        if row["arrived"] > avoided.get((row["prefill_iid"], row["decode_iid"]), seen.repaired) + AT_ONCE_S
        and ended(row) < seen.repaired
    ]
