"""What is left to do for a router whose process has ended: its counters, its tokens, its entry.

Runs in the warden, over the same stores as a router (cluster.md section 5). Repeating is harmless: counters
are absolute, a release names its token, an entry is deleted only while it is still that run's.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from narwhal.clock import Clock
from narwhal.cluster.fitness import newest_ms, unfit
from narwhal.errors import StoreError
from narwhal.model.legacy import Legacy, ToldToken
from narwhal.model.request import Counters
from narwhal.policy.warden import needs_no_more
from narwhal.ports import HandoffStore, LeaseStore, Registry

RETRY_S = 0.25
CALL_S = 0.8
REASON = "the router's process ended"
log = logging.getLogger("narwhal.warden")


@dataclass(frozen=True, slots=True)
class WardenStores:
    """All on one loop; they may share a connection: there is nothing here that could be held up."""

    lease: LeaseStore
    handoffs: HandoffStore
    registry: Registry


class Settlement:
    """One router's legacy. Use it once."""

    def __init__(self, legacy: Legacy, stores: WardenStores, *, clock: Clock) -> None:
        self._stores = stores
        self._clock = clock
        self._legacy = legacy
        # Counters first: a successor reads the totals as soon as it has the lease.
        self._steps: dict[str, Callable[[], Awaitable[bool]]] = {}
        if legacy.counters != Counters():
            self._steps["the counters"] = self._flush
        for age, told in enumerate(legacy.tokens):
            self._steps["the lease" if age == 0 else "the lease before"] = self._releasing(told)
        self._entry_left = not legacy.empty
        self._told: dict[str, str] = {}
        """By step: what kept it from being done, as it was said last."""

    @property
    def left(self) -> tuple[str, ...]:
        """What is not done yet."""
        return tuple(self._steps)

    async def run(self, *, until: float, given_up: Callable[[], bool]) -> None:
        """Tries everything every 0.25 s until it is done, until `until` or until `given_up` after a round."""
        while True:
            if await self._round() and self._entry_left:
                # It only saves a successor under the same ID some waiting: nothing is repeated for it.
                self._entry_left = False
                await self._tried("the entry", self._withdraw)
            over = self._clock.now() + RETRY_S >= until or given_up()
            if not self._steps or over:
                return
            await self._clock.sleep(RETRY_S)

    async def _round(self) -> bool:
        """Whether the store answered everything."""
        answered = True
        for name, step in list(self._steps.items()):
            done = await self._tried(name, step)
            answered = answered and done is not None
            if done:
                del self._steps[name]
        return answered

    async def _tried(self, name: str, step: Callable[[], Awaitable[bool]]) -> bool | None:
        """Whether it is done; None: no answer that can be used."""
        try:
            return await step()
        except StoreError as error:
            if self._told.get(name) != str(error):
                self._told[name] = str(error)
                log.warning("%s of the ended router: %s", name, error)
            return None

    async def _flush(self) -> bool:
        legacy = self._legacy
        await self._stores.handoffs.flush_totals({legacy.run: legacy.counters}, timeout_s=CALL_S)
        return True

    def _releasing(self, told: ToldToken) -> Callable[[], Awaitable[bool]]:
        async def release() -> bool:
            reply = await self._stores.lease.release(told.token, reason=REASON, timeout_s=CALL_S)
            return needs_no_more(told, reply)

        return release

    async def _withdraw(self) -> bool:
        await self._stores.registry.withdraw(self._legacy.router_id, self._legacy.run, timeout_s=CALL_S)
        return True


async def somebody_is_ready(registry: Registry, *, but: str) -> bool:
    """Whether a standby other than the router `but` lives and is ready to take over. A store that does not
    answer says no."""
    try:
        routers = await registry.routers(timeout_s=CALL_S)
    except StoreError as error:
        log.warning("whether a standby is ready cannot be read: %s", error)
        return False
    newest = newest_ms(routers)
    return any(one.router_id != but and not unfit(one, newest) for one in routers)
