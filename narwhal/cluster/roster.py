"""Who else is there: announces this router, reads the others, derives its rank among the standbys.

Advisory: it orders, it never decides. The compare-and-set on the lease does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from narwhal.cluster.failsafe import AddressBook
from narwhal.cluster.fitness import newest_ms, unfit
from narwhal.cluster.gate import LeasedGate
from narwhal.cluster.lease_loop import LeaseKeeper
from narwhal.cluster.mirror import Mirror
from narwhal.errors import ConfigError
from narwhal.model.control import RouterRole, role_of
from narwhal.model.plain_text import shown
from narwhal.model.store_call import RouterEntry
from narwhal.policy.unlikeness import Likeness, Unlikeness, compare, old_mirror
from narwhal.ports import Registry

log = logging.getLogger("narwhal.cluster")

REFRESH_S = 2.0
CALL_S = 0.8
TAKEN = "router ID {} is taken: a live router of this cluster has it"


class Roster:
    """Main loop only. `entry` is this router's fixed part; `resident` gives the legs that it has
    on engines now."""

    def __init__(
        self,
        registry: Registry,
        entry: RouterEntry,
        *,
        mirror: Mirror,
        keeper: LeaseKeeper,
        gate: LeasedGate,
    ) -> None:
        self._registry = registry
        self._entry = entry
        self._mirror = mirror
        self._keeper = keeper
        self._gate = gate
        self._refreshed_at = -inf
        self._told: tuple[str, bool] = ("", False)
        self._left = self._admitted = False
        self._compared: tuple[object, ...] = ()
        """What `_unlike` was told from; asked several times a tick, it changes with an announcement."""
        self._unlike = Unlikeness()
        self.resident: Callable[[], int] = lambda: 0
        self.routers: tuple[RouterEntry, ...] = ()
        """Live routers as last read, ourselves included."""
        self.read_at: float | None = None
        self.book = AddressBook(())
        self.engines: frozenset[str] = frozenset()
        self.model = ""
        self.lived = 0
        """Epoch of the last owner but us that was seen to live."""
        self.max_age_s = inf
        """Above it a mirror is called old."""
        self.may_own = True
        """False: in fail-safe mode, and no voter."""
        self.unsaved: Callable[[], str] = lambda: ""
        """Why the checkpoint cannot be written, "" while it can."""

    def admitted(self) -> None:
        """The checks at start are through: this router may compete."""
        if not self.may_own:
            log.warning(
                "router %s is not among the voters of --failsafe: it never owns", self._entry.router_id
            )
        self._admitted = True
        self.keep_out()

    @property
    def ready_to_take(self) -> bool:
        """A standby that has read log and document to their end, even if there was nothing, and that stays:
        one that shuts down takes nothing over, however long its last streams keep it. Nor is one ready that
        would be degraded as an owner, because its checkpoint cannot be written, or that cannot read the
        lease (docs/adr/0023)."""
        if self._gate.shutting_down or not self.may_own or self._mirror.read_at is None:
            return False
        return not self._lacks() and not self._unlikeness().forbids

    def _lacks(self) -> tuple[str, ...]:
        """What keeps this router from owning, whoever else does."""
        damaged, unsaved = self._gate.sight.damaged, self.unsaved()
        unreadable = (f"the lease cannot be read: {damaged}",) if damaged else ()
        return unreadable + ((unsaved,) if unsaved else ())

    def drift(self, now: float) -> tuple[str, ...]:
        """What this standby differs in from the owner as last seen, and what it lacks itself, in sentences;
        may be empty."""
        old = old_mirror(self._mirror.age_s(now), self.max_age_s)
        return self._unlikeness().sentences + old + self._lacks()

    def _unlikeness(self) -> Unlikeness:
        mirror, owner = self._mirror, self._gate.sight.owner
        entries = (one for one in self.routers if owner and one.router_id == owner.router_id)
        told = next((one for one in entries if one.run != self._entry.run), None)
        inputs = (told, mirror.document, mirror.schema_version, self.lived, self.engines, self.model)
        if inputs != self._compared:
            self._compared, self._unlike = inputs, compare(self._mine(), self._theirs(told))
        return self._unlike

    def _theirs(self, told: RouterEntry | None) -> Likeness:
        mirror, document = self._mirror, self._mirror.document
        return Likeness(
            version=told.version if told else "",
            config_digest=told.config_digest if told else "",
            contract_digest=told.contract_digest if told else "",
            schema_version=mirror.schema_version or (told.schema_version if told else 0),
            engines=frozenset(document.engines) if document else frozenset(),
            voters=told.voters if told else "",
            section_digests=told.section_digests if told else {},
            # Of an owner that lived beside us, or of its heirs: what was left by a cluster that had ended
            # before is nobody's to keep.
            model=document.model if document and 0 < self.lived <= document.epoch else "",
        )

    def _mine(self) -> Likeness:
        me = self._entry
        return Likeness(
            me.version,
            me.config_digest,
            me.contract_digest,
            engines=self.engines,
            voters=me.voters,
            section_digests=me.section_digests,
            model=self.model,
        )

    def keep_out(self) -> None:
        """A router of another fleet does not compete, however free the lease is; one that owns stays."""
        standing, allowed = self._keeper.standing, self._admitted and not self._unlikeness().another_fleet
        if standing.may_compete != allowed:
            self._keeper.standing = replace(standing, may_compete=allowed)
            self._keeper.wake()

    def entry(self, now: float) -> RouterEntry:
        """What this router tells of itself. An owner has no mirror and takes nothing over."""
        mirror, role = self._mirror, role_of(self._gate.state(now))
        owns = role is RouterRole.ACTIVE
        return replace(
            self._entry,
            role=role.value,
            epoch=self._gate.epoch,
            mirror_epoch=mirror.applied.epoch,
            mirror_n=mirror.applied.n,
            mirror_age_s=None if owns else mirror.age_s(now),
            resident=self.resident(),
            ready_to_take=not owns and self.ready_to_take,
            drift=() if owns else self.drift(now),
        )

    async def refresh(self, now: float) -> bool:
        """Announces and reads when it is time, or at once when role or readiness to take over changed.

        False: it was not due. Raises StoreError; ConfigError: another run has our ID.
        """
        told = (role_of(self._gate.state(now)).value, self.ready_to_take)
        if self._left or (now - self._refreshed_at < REFRESH_S and told == self._told):
            return False
        if not self._admitted:
            # The ID may still be another run's: it is not ours to announce.
            return False
        await self.look(now)
        return True

    async def look(self, now: float) -> None:
        """Announces and reads now. Raises StoreError; ConfigError: another run has our ID.

        Two routers started at once may both find the ID free: whoever announces second ends.
        """
        self._refreshed_at = now
        self._told = (role_of(self._gate.state(now)).value, self.ready_to_take)
        entry = self.entry(now)
        if not await self._registry.announce(entry, timeout_s=CALL_S):
            raise ConfigError(TAKEN.format(entry.router_id))
        self.routers = tuple(await self._registry.routers(timeout_s=CALL_S))
        self.read_at = now
        self.book.learn(self.routers)
        standing = self._keeper.standing
        self._keeper.standing = replace(
            standing, rank=_rank(entry, self.routers), ready_to_take=self.ready_to_take
        )

    # --- the others --------------------------------------------------------------------------------

    def standbys(self) -> tuple[RouterEntry, ...]:
        """Other routers that live and could take over, as last read."""
        mine = self._entry.router_id
        return tuple(one for one in self.routers if one.router_id != mine and not self._unfit(one))

    def objection(self, to: str | None) -> str:
        """Why the lease cannot be handed to `to` (None: to anybody), "" if it can."""
        if to is None:
            return "" if self.standbys() else "no standby is ready to take over"
        if to == self._entry.router_id:
            return f"router {to} is the owner itself"
        entry = next((one for one in self.routers if one.router_id == to), None)
        if entry is None:
            named = shown(to) or '""'
            return f"no router {named} is known in this cluster"
        return self._unfit(entry)

    def _unfit(self, entry: RouterEntry) -> str:
        return unfit(entry, newest_ms(self.routers))

    async def leave(self) -> None:
        """Deletes the own entry, for good: a successor under the same ID waits for it. Raises StoreError."""
        self._left = True
        await self._registry.withdraw(self._entry.router_id, self._entry.run, timeout_s=CALL_S)


def _rank(me: RouterEntry, routers: Sequence[RouterEntry]) -> int:
    """Standbys with a fresher mirror than ours, or an equal one and a smaller ID."""
    standbys = [one for one in routers if one.role == RouterRole.STANDBY.value]
    mine = (-me.mirror_epoch, -me.mirror_n, me.router_id)
    return sum((-one.mirror_epoch, -one.mirror_n, one.router_id) < mine for one in standbys)
