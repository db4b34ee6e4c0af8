"""Leadership in full for /ready and the documents: read from memory at one instant (ControlView)."""

from __future__ import annotations

from narwhal.cluster.fitness import newest_ms
from narwhal.cluster.gate import LeasedGate
from narwhal.cluster.history import History
from narwhal.cluster.mirror import Mirror
from narwhal.cluster.publisher import Publisher
from narwhal.cluster.roster import Roster
from narwhal.model.cluster_view import ClusterStatus, LeaseStatus, RouterStatus
from narwhal.model.control import ControlStatus, OwnerRef, RouterRole, StoreStatus, role_of
from narwhal.model.state_view import HandoffView
from narwhal.model.store_call import RouterEntry
from narwhal.policy.handoff_codec import to_fields
from narwhal.policy.phases import HOLDING


class LeasedView:
    """ControlView of a router with a lease. `mode` is that of the store: standalone or sentinel."""

    def __init__(
        self, gate: LeasedGate, *, mirror: Mirror, publisher: Publisher, roster: Roster, history: History
    ) -> None:
        self._gate = gate
        self._mirror = mirror
        self._publisher = publisher
        self._roster = roster
        self._history = history
        self.mode = "standalone"

    def status(self, now: float) -> ControlStatus:
        gate, state = self._gate, self._gate.state(now)
        standing_by = role_of(state) is not RouterRole.ACTIVE
        return ControlStatus(
            state=state,
            epoch=gate.epoch,
            holder=gate.holder,
            may_admit=gate.may_admit(now),
            owner=gate.sight.owner,
            fenced_why=gate.fenced_why(now),
            shutting_down=gate.shutting_down,
            blocked=self._publisher.blocked,
            store=self._store(),
            ready_to_take=standing_by and self._roster.ready_to_take,
            drift=self._roster.drift(now) if standing_by else (),
            mirror_age_s=self._mirror.age_s(now) if standing_by else None,
        )

    def _store(self) -> StoreStatus:
        sight = self._gate.sight
        latency_s = sight.store_latency_s
        return StoreStatus(
            mode=self.mode,
            latency_ms=None if latency_s is None else round(latency_s * 1000, 3),
            failures=sight.store_failures,
            reachable=sight.store_reachable,
        )

    def handoff(self, now: float) -> HandoffView | None:
        """The own document of an owner, the mirrored one of a standby; None until there is one."""
        document = self._publisher.document()
        if document is None:
            return None
        if self._publisher.owning:
            return HandoffView(to_fields(document), mirrored=False)
        return HandoffView(to_fields(document), mirrored=True, mirror_age_s=self._mirror.age_s(now))

    def lease_valid_s(self, now: float) -> float | None:
        return self._lease(now).valid_for_s

    def cluster(self, now: float) -> ClusterStatus:
        me = self._roster.entry(now)
        others = [one for one in self._roster.routers if one.router_id != me.router_id]
        read_at = self._roster.read_at
        age_s = now - read_at if read_at is not None else 0.0
        newest = newest_ms(self._roster.routers)
        routers = [_router(me, seen_s=0.0)]
        routers += [_router(one, seen_s=age_s + (newest - one.seen_ms) / 1000) for one in others]
        routers.sort(key=lambda router: router.router_id)
        return ClusterStatus(self._lease(now), tuple(routers), self._history.changes, self._store())

    def _lease(self, now: float) -> LeaseStatus:
        sight, grip = self._gate.sight, self._gate.grip
        owner = sight.owner or OwnerRef("", "")
        held = sight.state in HOLDING
        valid_for_s = max(0.0, grip.valid_until - now) if grip and held and not grip.fenced_why else None
        return LeaseStatus(
            state=sight.record,
            holder=sight.holder,
            router_id=owner.router_id,
            url=owner.url,
            epoch=sight.epoch,
            seq=sight.seq,
            ttl_s=sight.ttl_s,
            valid_for_s=valid_for_s,
        )


def _router(entry: RouterEntry, *, seen_s: float) -> RouterStatus:
    return RouterStatus(
        router_id=entry.router_id,
        url=entry.url,
        role=entry.role,
        epoch=entry.epoch,
        mirror_age_s=entry.mirror_age_s,
        version=entry.version,
        ready_to_take=entry.ready_to_take,
        drift=entry.drift,
        seen_s=round(seen_s, 3),
        control_url=entry.control_url,
    )
