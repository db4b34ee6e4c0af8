"""A router in one process whose engines drift and change roles: every state that its documents can show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from narwhal.cluster.state import Identity, OwnState
from narwhal.model.decoding import DecodeSeen
from narwhal.model.engine import EngineProfile, EngineSpec, Leg, Role
from narwhal.model.evidence import FailureClass, LegFailed
from narwhal.model.placement import Demand
from narwhal.policy.handoff_codec import to_fields
from tests.support.own_router import Own
from tests.support.settings import controller_settings

WINDOW_S = 30.0
SAMPLES = 3


def specs(*iids: str) -> list[EngineSpec]:
    """The first letter is the role."""
    return [EngineSpec(iid, f"http://{iid}", Role.PREFILL if iid[0] == "p" else Role.DECODE) for iid in iids]


def profile(iid: str) -> EngineProfile:
    return EngineProfile(iid, 0.0, 0.001, 0.0, tpot_slope=1e-6, tpot_intercept=0.01)


def roll(own: Own, **intervals: float) -> None:
    seen = [DecodeSeen(iid, interval_s, 1.0, 100.0) for iid, interval_s in intervals.items()]
    own.fleet.pacing.roll(seen, own.clock.now())


def window(own: Own, samples: int = SAMPLES, **intervals: float) -> None:
    """One window up to the instant at which it may be closed."""
    for _ in range(samples):
        roll(own, **intervals)
        own.clock.now_s += WINDOW_S / samples


def slow(own: Own, iid: str) -> None:
    """Drifts up to the pass that puts the engine on probation: the last window is still open."""
    for interval_s in (0.02, 0.06, 0.06, 0.06):
        own.fleet.pacing.close(own.clock.now())
        window(own, **{iid: interval_s})


def drift_story() -> Iterator[Own]:
    """The router at every turn of its drift evidence."""
    own = Own(
        *specs("p0", "p1", "d0", "d1"), profiles={iid: profile(iid) for iid in ("p0", "p1", "d0", "d1")}
    )
    yield own
    own.fleet.reserve_prefill(Demand(100), own.clock.now())
    roll(own, d0=0.03, p0=0.03)
    yield own
    window(own, samples=1, d0=0.02)
    own.fleet.pacing.close(own.clock.now())
    yield own
    slow(own, "d0")
    own.fleet.pacing.close(own.clock.now())
    yield own
    own.clock.now_s += 5.0
    yield own


def role_story() -> Iterator[Own]:
    """Routers at every turn of role control: moves either way, a proposal, refusals."""
    for advisory, out in (
        (False, ("p0", "p1", "p2", "d1", "d2", "d0")),
        (True, ("p0", "p1")),
        (False, ("d0", "d1", "d2")),
    ):
        floors = {"min_prefill": 2} if out[0] == "p0" else {"min_decode": 3}
        controller = controller_settings(advisory=advisory, **floors)
        own = Own(*specs("p0", "p1", "p2", "d0", "d1", "d2"), controller=controller)
        own.clock.now_s += len(out)
        for iid in out:
            own.fleet.standings.eject(iid, "it refused connections", now=own.clock.now())
            own.fleet.control(own.clock.now())
            yield own
            own.clock.now_s += 1.0
        for iid in out:
            own.fleet.standings.returns.readmit(iid, (), now=own.clock.now())
        own.fleet.control(own.clock.now())
        yield own
    for _ in range(2):
        own.fleet.step(_NO_FIRST_TOKEN, own.clock.now())
        yield own


_NO_FIRST_TOKEN = LegFailed("d0", Leg.DECODE, FailureClass.STREAM, "stream:first_token", "no first token")


def handoff_of(own: Own) -> dict[str, Any]:
    """What the router would publish now."""
    identity = Identity("a:1", "run-1", own.config.model, own.fleet.engines)
    state = OwnState(own.fleet, own.totals, identity=identity, clock=own.clock)
    return to_fields(state.compose(epoch=7, holder="a:1:00ff"))
