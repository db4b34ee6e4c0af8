"""When what is done every so many monitor passes is due again. Pure.

Passes come on a grid of instants, each some milliseconds late. What were due whole intervals after one pass
would miss its turn whenever a later pass is a little less late, and wait for one more. So it is due half an
interval before: at the pass that is nearest to its time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """Once every `passes` passes of `interval_s` seconds."""

    passes: int
    interval_s: float

    @property
    def every_s(self) -> float:
        """Seconds from one to the next."""
        return self.passes * self.interval_s

    def after(self, now: float, *, turns: int = 1) -> float:
        """From when on it is due, so many turns after `now`."""
        return now + (turns * self.passes - 0.5) * self.interval_s
