"""cluster/warden.py: what is settled for a router that has ended, in which order, how often, how long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from narwhal.cluster.warden import Settlement, WardenStores, somebody_is_ready
from narwhal.errors import StoreProtocolError, StoreUnreachable
from narwhal.model.legacy import Legacy, ToldToken
from narwhal.model.request import Counters, Outcome
from narwhal.model.store_call import RouterEntry
from narwhal.store.handoff import ScriptHandoffStore
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.memory import MemoryRunner
from narwhal.store.registry import ScriptRegistry
from narwhal.store.scripts import Argument, Reply
from tests.unit.cluster.cluster_rig import Router, Scene, play


class Kept(MemoryRunner):
    """Remembers which scripts ran, and fails those of `broken`."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene.server)
        self.ran: list[str] = []
        self.broken: dict[str, Exception] = {}

    async def run(
        self, script: str, keys: Sequence[str], *, args: Sequence[Argument] = (), timeout_s: float
    ) -> Reply:
        self.ran.append(script)
        if script in self.broken:
            raise self.broken[script]
        return await super().run(script, keys, args=args, timeout_s=timeout_s)


class Estate:
    """One ended router's legacy over the scene's store."""

    def __init__(self, scene: Scene, legacy: Legacy) -> None:
        self.scene, self.legacy = scene, legacy
        self.runner = Kept(scene)
        self.stores = WardenStores(
            lease=ScriptLeaseStore(self.runner, "c"),
            handoffs=ScriptHandoffStore(self.runner, "c"),
            registry=ScriptRegistry(self.runner, "c"),
        )
        self.given_up = False

    async def settle(self, *, within_s: float = 5.0) -> Settlement:
        settlement = Settlement(self.legacy, self.stores, clock=self.scene.clock)
        until = self.scene.clock.now() + within_s
        await settlement.run(until=until, given_up=lambda: self.given_up)
        return settlement


def legacy_of(router: Router, *older: ToldToken) -> Legacy:
    """What a warden would have of this router, told at each acquire."""
    grip = router.parts.gate.grip
    tokens = (ToldToken(grip.token, grip.epoch - 1),) if grip else ()
    identity = router.parts.takeover._state.identity
    return Legacy(identity.router_id, identity.run, router.totals.own, tokens + older)


def lease(scene: Scene) -> dict[str, Any]:
    return dict(scene.server.data.lease)


def test_a_killed_owner_leaves_exact_counters_a_free_lease_and_no_entry() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        await scene.clock.sleep(3.0)
        owner.totals.finished(Outcome.SERVED)  # not flushed: that takes 50 ms
        owner.kill()
        estate = Estate(scene, legacy_of(owner))
        settlement = await estate.settle()
        assert settlement.left == ()
        assert estate.runner.ran == ["totals_flush", "lease_release", "router_withdraw"]
        assert (lease(scene)["state"], lease(scene)["sure"]) == ("released", "1")
        began = scene.clock.now()
        heir = await scene.owner("r1")
        assert scene.clock.now() - began < 1.0
        assert heir.totals.total() == Counters(served=1, offered=1)
        assert await estate.stores.registry.routers(timeout_s=1.0) == []

    play(script)


def test_a_lease_that_another_router_has_by_now_is_left_alone() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        legacy = legacy_of(owner)
        owner.kill()
        heir = await scene.owner("r1")
        before, began = lease(scene), scene.clock.now()
        settlement = await Estate(scene, legacy).settle()
        assert settlement.left == ()
        assert scene.clock.now() == began, "one round is enough: the epoch is higher"
        assert lease(scene)["token"] == before["token"] and heir.owns

    play(script)


def test_the_older_of_two_tokens_is_released_where_the_newer_one_never_landed() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        held = legacy_of(owner).tokens
        owner.kill()
        newer = ToldToken("never-sent", held[0].floor + 1)
        estate = Estate(scene, Legacy("r0", "r0-1", Counters(), (newer, *held)))
        settlement = await estate.settle(within_s=2.0)
        assert lease(scene)["state"] == "released"
        assert settlement.left == ("the lease",), "its acquire might still have been on its way"

    play(script)


def test_an_acquire_that_lands_late_is_released_too() -> None:
    async def script(scene: Scene) -> None:
        owner = scene.router("r0")
        told = ToldToken("late", 0)
        estate = Estate(scene, Legacy("r0", "r0-1", Counters(), (told,)))

        async def land() -> None:
            await scene.clock.sleep(1.0)
            scene.server.data.lease = {
                "state": "held",
                "token": "late",
                "seq": "0",
                "epoch": "5",
                "owner": "r0",
                "ttl_ms": "5000",
                "inc": scene.server.inc,
                "sure": "1",
            }

        landing = scene.loop.create_task(land())
        settlement = await estate.settle()
        await landing
        assert settlement.left == ()
        assert lease(scene)["state"] == "released"
        assert owner.totals.own == Counters()

    play(script)


def test_a_silent_store_is_asked_again_every_quarter_second_for_t_and_no_longer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(scene: Scene) -> None:
        estate = Estate(scene, Legacy("r0", "run", Counters(served=1, offered=1), (ToldToken("t", 0),)))
        for name in ("totals_flush", "lease_release"):
            estate.runner.broken[name] = StoreUnreachable("no answer")
        began = scene.clock.now()
        settlement = await estate.settle(within_s=5.0)
        assert settlement.left == ("the counters", "the lease")
        assert 4.5 <= scene.clock.now() - began <= 5.0
        assert estate.runner.ran.count("lease_release") == pytest.approx(20, abs=1)
        assert "router_withdraw" not in estate.runner.ran

    play(script)
    told = [record.getMessage() for record in caplog.records if record.name == "narwhal.warden"]
    assert told == [f"{what} of the ended router: no answer" for what in ("the counters", "the lease")]


def test_an_order_to_end_at_once_leaves_it_at_one_round() -> None:
    async def script(scene: Scene) -> None:
        estate = Estate(scene, Legacy("r0", "run", Counters(), (ToldToken("t", 0),)))
        estate.runner.broken["lease_release"] = StoreUnreachable("no answer")
        estate.given_up = True
        began = scene.clock.now()
        assert (await estate.settle()).left == ("the lease",)
        assert scene.clock.now() == began

    play(script)


def test_counters_that_the_store_refuses_do_not_hold_the_lease_back() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        owner.totals.finished(Outcome.SERVED)
        owner.kill()
        estate = Estate(scene, legacy_of(owner))
        estate.runner.broken["totals_flush"] = StoreProtocolError("NOPERM")
        settlement = await estate.settle(within_s=1.0)
        assert lease(scene)["state"] == "released"
        assert settlement.left == ("the counters",)

    play(script)


def test_a_standby_that_never_counted_or_acquired_leaves_only_its_entry() -> None:
    async def script(scene: Scene) -> None:
        estate = Estate(scene, Legacy("r0", "run"))
        await estate.settle()
        assert estate.runner.ran == ["router_withdraw"]

    play(script)


@pytest.mark.parametrize(
    ("router_id", "ready", "expected"), [("b", True, True), ("b", False, False), ("a", True, False)]
)
def test_who_could_take_over_is_another_router_that_says_so(
    router_id: str, ready: bool, expected: bool
) -> None:
    async def script(scene: Scene) -> None:
        estate = Estate(scene, Legacy("a", "run"))
        entry = RouterEntry(router_id, "run-2", "standby", "http://b", ready_to_take=ready)
        await estate.stores.registry.announce(entry, timeout_s=1.0)
        assert await somebody_is_ready(estate.stores.registry, but="a") is expected

    play(script)


def test_the_entry_of_a_standby_that_died_too_is_nobody_who_could_take_over() -> None:
    """It lives 15 s after its last word: the router that stands still was heard of later."""

    async def script(scene: Scene) -> None:
        estate = Estate(scene, Legacy("a", "run"))
        registry = estate.stores.registry
        owner = RouterEntry("a", "run", "active", "http://a")
        standby = RouterEntry("b", "run-2", "standby", "http://b", ready_to_take=True)
        await registry.announce(standby, timeout_s=1.0)
        await scene.clock.sleep(5.0)
        await registry.announce(owner, timeout_s=1.0)
        assert await somebody_is_ready(registry, but="a")
        await scene.clock.sleep(2.0)
        await registry.announce(owner, timeout_s=1.0)
        assert not await somebody_is_ready(registry, but="a")

    play(script)


def test_only_a_standby_could_take_over() -> None:
    async def script(scene: Scene) -> None:
        estate = Estate(scene, Legacy("a", "run"))
        other = RouterEntry("b", "run-2", "active", "http://b", ready_to_take=True)
        await estate.stores.registry.announce(other, timeout_s=1.0)
        assert not await somebody_is_ready(estate.stores.registry, but="a")

    play(script)


def test_a_silent_store_knows_no_standby() -> None:
    async def script(scene: Scene) -> None:
        estate = Estate(scene, Legacy("a", "run"))
        estate.runner.broken["router_list"] = StoreUnreachable("no answer")
        assert not await somebody_is_ready(estate.stores.registry, but="a")

    play(script)
