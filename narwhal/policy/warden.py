"""What the warden decides: a stall, a signal's meaning, when a token needs no more releasing. Pure.

Times are the warden's own clock (seconds).

| a signal comes | while | means |
| --- | --- | --- |
| first | always | pass on: clean shutdown |
| again | within 1 s of the first | nothing: one Ctrl-C reaches a process by two ways |
| again | later | cut: the router ends now what still runs; 2 s later it is killed |
| more | after that | nothing |
"""

from __future__ import annotations

from enum import Enum
from math import inf

from narwhal.model.lease import Lost
from narwhal.model.legacy import ToldToken

TICK_S = 0.25
STALL_TICKS = 8
GAP_S = 0.5
"""Own ticks further apart than this say that the host slept or starved us: that is no stall of the router."""
ONE_SIGNAL_S = 1.0
CUT_S = 2.0
"""What a router that was told to cut its streams gets for its last accounts."""


class StallCount:
    """Counts own ticks without a heartbeat of the router's main loop.

    `beats` only grows while a loop runs; 0 means that none does (starting, or past its end), so there is
    nothing to stall.
    """

    def __init__(self) -> None:
        self._beats = 0
        self._ticked = -inf
        self.silent = 0
        """Own ticks in a row without a beat."""

    def tick(self, now: float, beats: int) -> bool:
        """One look at the heartbeat; True: stalled."""
        late, self._ticked = now - self._ticked > GAP_S, now
        if late or beats != self._beats or beats == 0:
            self._beats, self.silent = beats, 0
        else:
            self.silent += 1
        return self.stalled

    @property
    def stalled(self) -> bool:
        return self.silent >= STALL_TICKS

    def alive(self, beats: int) -> bool:
        """Whether a beat came after the last tick."""
        return beats != self._beats


class Meaning(Enum):
    """Of one SIGTERM or SIGINT."""

    PASS_ON = "pass on"
    NOTHING = "nothing"
    CUT = "cut"


class Ending:
    """Many signals are one order to end, and at most one order to end at once."""

    def __init__(self) -> None:
        self._first_at = inf
        self._cut_at = inf

    def signalled(self, now: float) -> Meaning:
        if self._first_at == inf:
            self._first_at = now
            return Meaning.PASS_ON
        if self._cut_at == inf and now - self._first_at > ONE_SIGNAL_S:
            self._cut_at = now
            return Meaning.CUT
        return Meaning.NOTHING

    @property
    def asked(self) -> bool:
        """An order to end has come."""
        return self._first_at != inf

    @property
    def cut(self) -> bool:
        """An order to end at once has come: nothing is worth waiting for any more."""
        return self._cut_at != inf

    @property
    def kill_at(self) -> float:
        """When a router that does not follow is killed; inf: not foreseen."""
        return self._cut_at + CUT_S


def needs_no_more(told: ToldToken, reply: bool | Lost) -> bool:
    """Whether the release of that token is over with this reply.

    Released; or the record has an epoch above what the router knew before it acquired. Then the record is
    another than the one that acquire was to swap, and a late copy of the acquire is refused for ever. At an
    epoch not above it the acquire may still be on its way, or a late renewal may write a lost record again.
    """
    return not isinstance(reply, Lost) or reply.epoch > told.floor
