"""The decode streams that are open now, read once a monitor pass: how fast each engine's tokens come.

Nothing is added to a frame: a stream counts its events anyway, and here its count is compared with that of
the look before. The time of a stream begins with its first token and ends with its finish reason: what is
left of it in the accounts after that is no evidence.

The same counts tell whether an engine that misses health checks is alive: it is, while it brings tokens.
Pings and comments are none.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from narwhal.clock import Clock
from narwhal.model.decoding import DecodeSeen
from narwhal.serving.relay import LegTally

SLICE = 128
"""Streams looked at in one piece, in well under a millisecond."""


class OpenDecode:
    """One decode leg from its dispatch to its end. Made and dropped by `OpenDecodes`."""

    __slots__ = ("_at", "_halted", "_input_tokens", "_pauses", "_seen", "_tally", "brought_at", "iid")

    def __init__(self, iid: str, tally: LegTally, *, input_tokens: int) -> None:
        self.iid = iid
        self._tally = tally
        self._input_tokens = input_tokens
        self._at = 0.0
        self._seen = 0
        self._halted = False
        self._pauses = 0
        self.brought_at = -inf
        """When a look last found tokens that the look before had not: a pass late at most."""

    @property
    def kv_tokens(self) -> int:
        return self._input_tokens + self._seen

    def look(self, now: float, *, last: bool = False) -> tuple[float, int]:
        """Seconds and token intervals since the last look that told any; (0.0, 0): nothing to tell.

        A stream without a new token tells the gap, once that is longer than its intervals were; it is told
        again while it lasts. `last`: the leg has ended, and a gap at its end is no interval.
        """
        tally = self._tally
        first = tally.first_output_at
        if first is None or tally.flow is None:
            return 0.0, 0
        if not self._seen:
            self._at, self._seen = first, 1
        if tally.events > self._seen or self.brought_at == -inf:
            self.brought_at = now
        events, until = tally.events - self._seen, now
        if tally.finished_at is not None:
            until, last = tally.finished_at, True
        if self._held_back():
            self._at, self._seen = now, tally.events
            return 0.0, 0
        seconds = until - self._at
        if events > 0:
            self._at, self._seen = until, tally.events
            return max(0.0, seconds), events
        return (0.0, 0) if last or seconds <= self._mean_s(first) else (seconds, 1)

    def quiet_s(self, now: float) -> float:
        """Seconds since it brought tokens, as far as looks tell; inf before the first."""
        return 0.0 if self._tally.events > self._seen else now - self.brought_at

    def _mean_s(self, first: float) -> float:
        """Seconds between its tokens so far; 0 while there was only one."""
        return (self._at - first) / (self._seen - 1) if self._seen > 1 else 0.0

    def _held_back(self) -> bool:
        """Its client was slow since the last look: we stopped reading, and the engine is not to blame."""
        flow = self._tally.flow
        assert flow is not None
        was_halted, pauses = self._halted, self._pauses
        self._halted, self._pauses = flow.paused, flow.pauses
        return was_halted or flow.paused or flow.pauses != pauses


class _Sum:
    """What the streams of one engine told since the pass before."""

    __slots__ = ("intervals", "kv_seconds", "seconds", "stream_seconds")

    def __init__(self) -> None:
        self.intervals = 0
        self.seconds = 0.0
        self.stream_seconds = 0.0
        """As `seconds`, but nothing from before that pass."""
        self.kv_seconds = 0.0

    def seen(self, iid: str, elapsed_s: float) -> DecodeSeen:
        sequences = max(1.0, self.stream_seconds / elapsed_s)
        kv_tokens = self.kv_seconds / self.seconds * sequences
        return DecodeSeen(iid, self.seconds / self.intervals, sequences, kv_tokens)


class OpenDecodes:
    """Implements `ports.DecodeWatch`. Main loop only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: set[OpenDecode] = set()
        self._sums: dict[str, _Sum] = {}
        self._brought_at: dict[str, float] = {}
        """Engine ID to when its streams that have ended last brought tokens."""
        self._taken_at = clock.now()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, iid: str, tally: LegTally, *, input_tokens: int) -> OpenDecode:
        """A decode leg goes to the engine."""
        leg = OpenDecode(iid, tally, input_tokens=input_tokens)
        self._open.add(leg)
        return leg

    def end(self, leg: OpenDecode) -> None:
        """It has ended, however."""
        self._open.discard(leg)
        self._add(leg, self._clock.now(), last=True)
        if leg.brought_at > -inf:
            self._brought_at[leg.iid] = leg.brought_at

    def quiet_s(self, iid: str) -> float:
        """Seconds since decode streams of the engine brought tokens, also such as have ended; inf: none did.
        Looks at every open stream: for when something is amiss."""
        now = self._clock.now()
        ended_s = now - self._brought_at.get(iid, -inf)
        return min(ended_s, *(leg.quiet_s(now) for leg in self._open if leg.iid == iid), inf)

    # --- ports.DecodeWatch ---

    def look(self) -> Iterator[None]:
        for number, leg in enumerate(tuple(self._open), start=1):
            if number % SLICE == 0:
                yield
            if leg in self._open:
                self._add(leg, self._clock.now())

    def take(self) -> tuple[DecodeSeen, ...]:
        now = self._clock.now()
        sums, self._sums = self._sums, {}
        elapsed_s, self._taken_at = now - self._taken_at, now
        told = {iid: one for iid, one in sorted(sums.items()) if one.seconds > 0 and elapsed_s > 0}
        return tuple(one.seen(iid, elapsed_s) for iid, one in told.items())

    def _add(self, leg: OpenDecode, now: float, *, last: bool = False) -> None:
        seconds, intervals = leg.look(now, last=last)
        if not intervals:
            return
        own = self._sums.get(leg.iid)
        if own is None:
            own = self._sums[leg.iid] = _Sum()
        own.intervals += intervals
        own.seconds += seconds
        own.stream_seconds += min(seconds, now - self._taken_at)
        own.kv_seconds += seconds * leg.kv_tokens
