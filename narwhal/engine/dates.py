"""How long an answer may have been under way: its `date` header against those of the engine's other answers.

uvicorn, which vLLM uses, writes it with each response in whole seconds, and renews it once in a second: it
tells of a moment at most `GRAIN_S` before the head was written, and of none after. Clocks need not agree: the
*lead* is what ours was ahead of the engine's header when an answer came, the smallest seen: by our clock date
D is a moment no later than D + lead, and hardly earlier, since of many answers one was hardly under way and
had its date just renewed. Of one answer alone it may be earlier by `GRAIN_S` and by its own way.

| an answer of date D comes | lead | it may have been written as early as |
| --- | --- | --- |
| without a header, or with one that is no date | stays | says nothing: what `arrivals` tells |
| the first one | ours less D | it was sent for: nothing to compare it with |
| D + lead + GRAIN_S is before it was sent for: a clock went back | ours less D | it was sent for |
| D + lead + GRAIN_S is before now | stays | D + lead: it was under way, or its engine stood still |
| else | the smaller one of lead and ours less D | says nothing: what `arrivals` tells |

A lead is right to the time between two answers once those of a whole second were seen; before that it may be
too great by `GRAIN_S`, and what it tells too late by as much.

It is never told earlier than it was sent for, nor later than `arrivals` tells. Whichever of the clocks
steps, the first quick answer shows it, and each health check is one; a clock that creeps back is followed by
`EASE`, which in exchange believes an answer so much of the time since the newest good one.
"""

from __future__ import annotations

from datetime import UTC, datetime

GRAIN_S = 2.0
EASE = 0.01
"""So fast grows a lead by itself: more than clocks drift or, but for moments, are slewed."""

_MONTHS = {
    "Jan": 1, "Feb": 2, "Mar": 3, "Apr": 4, "May": 5, "Jun": 6,
    "Jul": 7, "Aug": 8, "Sep": 9, "Oct": 10, "Nov": 11, "Dec": 12,
}  # fmt: skip
_LENGTH = len("Sun, 06 Nov 1994 08:49:37 GMT")


class _Lead:
    """Of one engine: `lead_s` as of `at`, and the newest date with what it was read as."""

    __slots__ = ("at", "date_s", "lead_s", "text")

    def __init__(self) -> None:
        self.text = ""
        self.date_s: float | None = None
        self.lead_s: float | None = None
        self.at = 0.0


class AnswerDates:
    """Of all engines that one process asks. Times are on Clock.now. Pure."""

    __slots__ = ("_leads",)

    def __init__(self) -> None:
        self._leads: dict[str, _Lead] = {}

    def written(self, iid: str, date: str, *, sent_at: float, came: float, now: float) -> float:
        """When an answer, sent for at `sent_at` and read now, may have been written at the earliest.

        `came`: what `arrivals` tells of that.
        """
        lead = self._leads.get(iid)
        if lead is None:
            lead = self._leads[iid] = _Lead()
        if date != lead.text:
            lead.text, lead.date_s = date, read_date(date)
        date_s = lead.date_s
        if date_s is None:
            return came
        ahead_s = now - date_s
        if lead.lead_s is None:
            lead.lead_s, lead.at = ahead_s, now
            return sent_at
        lead_s = lead.lead_s + EASE * (now - lead.at)
        written_at = date_s + lead_s
        if written_at + GRAIN_S < sent_at:
            lead.lead_s, lead.at = ahead_s, now
            return sent_at
        lead.lead_s, lead.at = min(lead_s, ahead_s), now
        if written_at + GRAIN_S < now:
            return max(sent_at, min(came, written_at))
        return came


def read_date(text: str) -> float | None:
    """Unix seconds of an HTTP date as every server is to write it (RFC 9110, 5.6.7), None for another text.

    No parser of the standard library: those take twenty calls, and this is asked once a second and engine.
    """
    if len(text) != _LENGTH or not text.endswith(" GMT"):
        return None
    try:
        month, clock = _MONTHS[text[8:11]], text[17:25].split(":")
        hour, minute, second = map(int, clock)
        day = datetime(int(text[12:16]), month, int(text[5:7]), hour, minute, second, tzinfo=UTC)
    except (KeyError, ValueError):
        return None
    return day.timestamp()
