"""Which orders to drain and readmit are refused, and why (http-api.md section 5). Pure.

| order | refused (409) unless |
| --- | --- |
| drain of one engine | it is configured, restarts are individual, each leg keeps an engine |
| readmit of one engine | it is configured, restarts are individual, it is drained by itself |
| readmit of all | a wave is on |
| drain | the deadline lies ahead |
| any of single engines | it is one engine, and the fleet does not need a wave |

All engines named are the whole fleet: a wave. An engine keeps a leg if it takes requests, or will as soon as
its checks are in: an identity that is awaited, a health check after a cautious takeover. One that is ejected
may be drained whatever is left: nothing is taken from a leg. A drain that is on may be ordered again.
"""

from __future__ import annotations

from narwhal.model.maintenance import DrainOrder, WaveState
from narwhal.model.plain_text import shown
from narwhal.policy.drain import Drains
from narwhal.policy.membership import takes_last
from narwhal.policy.standings import Standings
from narwhal.policy.wave import Wave

INDIVIDUAL = "individual"
LONGEST_DEADLINE_S = 7 * 24 * 3600.0
"""No running work takes longer, and the instant is a date that every reader can hold."""


class Orders:
    """`policy`: `recovery.engine_restart_policy`. Reads the others, moves nothing."""

    __slots__ = ("_drains", "_policy", "_standings", "_wave")

    def __init__(self, drains: Drains, wave: Wave, *, standings: Standings, policy: str) -> None:
        self._drains = drains
        self._wave = wave
        self._standings = standings
        self._policy = policy

    def targets(self, order: DrainOrder) -> tuple[str, ...]:
        """IDs of the engines that it is about, sorted."""
        return self._standings.engines if self.is_wave(order) else tuple(sorted(set(order.engines)))

    def is_wave(self, order: DrainOrder) -> bool:
        """The only engine of a fleet may have been drained alone when it was one of several."""
        known = self._standings.engines
        if order.wave or set(order.engines) != set(known):
            return order.wave
        return len(known) > 1 or self._wave.on or not self._drains.record(known[0]).out

    def refuses_drain(self, order: DrainOrder, now: float) -> str:
        """Why not, one sentence; "" if it may be done."""
        why = self._refuses_shape(order, "drain")
        if why:
            return why
        if not 0 < order.deadline_s <= LONGEST_DEADLINE_S:
            return f"deadline_s must be above 0, {LONGEST_DEADLINE_S:g} at most, not {order.deadline_s:g}"
        if self.is_wave(order):
            return ""
        (iid,) = set(order.engines)
        if self._takes_last(iid, now):
            return (
                f"{iid} cannot be drained: no other engine can take its part now; "
                "bring one back first, or drain the whole fleet as a wave"
            )
        return ""

    def refuses_readmit(self, order: DrainOrder) -> str:
        """As `refuses_drain`."""
        why = self._refuses_shape(order, "readmit")
        if why:
            return why
        if self.is_wave(order):
            return "" if self._wave.on else self._no_wave()
        (iid,) = set(order.engines)
        record = self._drains.record(iid)
        if record.wave_id is not None:
            return f"{iid} is a member of the wave {record.wave_id}: readmit the whole wave"
        if not record.out:
            return f"{iid} is not drained: there is nothing to readmit{self._comes_back(iid)}"
        return ""

    def _takes_last(self, iid: str, now: float) -> bool:
        """A leg would be left without an engine: now, or when everybody is verified who is to be."""
        standings = self._standings
        if standings.is_out(iid):
            return False
        able, eligible = standings.able, standings.eligible(now)
        if iid in eligible and takes_last(iid, able=able, eligible=eligible):
            return True
        out, held = standings.is_out, standings.holding.on
        later = {one for one in standings.engines if not out(one) and held(one, now) is None}
        return takes_last(iid, able=able, eligible=later)

    def _comes_back(self, iid: str) -> str:
        """What is to be said of an engine that somebody wants back and no order brings back."""
        out = self._standings.ejections.view().get(iid)
        if out is None:
            return ""
        return f" (it is {out.sentence}); mend that: it comes back by itself when its checks pass"

    def _no_wave(self) -> str:
        if self._wave.state is WaveState.REQUIRED:
            return f"no wave is drained, and the fleet needs one ({self._wave.why}): drain the wave first"
        if self._drains.out():
            return "no wave is drained: readmit the engines that are drained one after another"
        return "no wave is drained: there is nothing to readmit"

    def _refuses_shape(self, order: DrainOrder, verb: str) -> str:
        known = self._standings.engines
        named = set(order.engines)
        if not order.wave and not named:
            return f"engines is empty: name the engine to {verb}"
        unknown = sorted(named - set(known))
        if unknown:
            return f"{shown(unknown[0])} is no engine of this fleet; its engines are {', '.join(known)}"
        if self.is_wave(order):
            return ""
        if len(named) > 1:
            return (
                f"{len(named)} engines are neither one nor the whole fleet: {verb} them one after another, "
                "or all as a wave"
            )
        return self._refuses_single(verb)

    def _refuses_single(self, verb: str) -> str:
        if self._policy != INDIVIDUAL:
            return f"engine_restart_policy is {self._policy}: {verb} the whole fleet as a wave"
        if self._wave.state is WaveState.REQUIRED:
            return f"the fleet needs a wave ({self._wave.why}): drain the whole fleet as a wave"
        return ""
