"""The watching rule: when a lease version may be taken by compare-and-set (cluster.md section 2).

A version is `token:seq` under one server incarnation, seen from a master. It may be taken once this
router has itself seen it unchanged for `span_s` on its own clock, counted from the *receipt* of its first
sight; a record released by the present incarnation with `sure` may be taken at once. Server times and key
expiries play no part: Redis may have been restarted, emptied, rolled back or had its clock stepped.
"""

from __future__ import annotations

from narwhal.model.lease import LeaseState, LeaseVersion, LeaseView


class Watch:
    """One candidate's observation of the lease record. `now` is always the receipt of the reply."""

    def __init__(self, *, ttl_s: float, ttl_s_max: float) -> None:
        self.span_s = max(ttl_s, ttl_s_max)
        """The greatest of the own TTL, the record's and any ever seen: grows, never shrinks."""
        self.version: LeaseVersion | None = None
        self.inc = ""
        self.since = 0.0
        self.released_at: float | None = None
        self.sure = False
        self._last = 0.0

    def see(self, view: LeaseView, now: float) -> None:
        """Takes one peek. A replica's view, or nothing stored, forgets what was watched.

        A silence longer than the span begins the watch anew: nothing vouches for the time between.
        """
        self.span_s = max(self.span_s, view.ttl_ms / 1000)
        if view.role != "master" or view.version is None:
            self.forget()
            return
        inc = str(view.inc)
        silent = now - self._last > self.span_s
        if view.version != self.version or inc != self.inc or silent:
            self.version, self.inc, self.since, self.released_at = view.version, inc, now, None
        self._last = now
        self.sure = view.released_for_sure
        if view.state is not LeaseState.RELEASED:
            self.released_at = None
        elif self.released_at is None:
            self.released_at = now

    def forget(self) -> None:
        """Nothing is watched: the next sight is a first sight."""
        self.version, self.inc, self.released_at, self.sure = None, "", None, False

    @property
    def ripe_at(self) -> float | None:
        """When what is watched may be taken (it may be in the past); None: nothing is watched."""
        if self.version is None:
            return None
        if self.sure and self.released_at is not None:
            return self.released_at
        return self.since + self.span_s
