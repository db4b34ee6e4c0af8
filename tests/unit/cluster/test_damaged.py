"""What no router wrote is in the store: routers go on, say which key, and take it up again once mended."""

from __future__ import annotations

import pytest

from narwhal.errors import StoreDamaged
from narwhal.model.lease import MAX_EPOCH
from narwhal.store.registry import ScriptRegistry
from tests.unit.cluster.cluster_rig import Scene, play

LEASE = "narwhal:{c}:lease"


def test_an_epoch_that_nobody_was_granted_stops_no_handover() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await scene.owner("a"), scene.router("b")
        standby.start()
        await scene.clock.sleep(3.0)
        epoch = owner.parts.gate.epoch
        scene.server.data.epoch = 10**20
        await scene.clock.sleep(1.0)
        assert (await owner.parts.yielding.order(None)).error == ""
        await scene.until(lambda: standby.owns, limit_s=2.0)
        assert epoch < standby.parts.gate.epoch == scene.server.data.epoch <= MAX_EPOCH

    play(script)


def test_a_standby_that_cannot_read_the_lease_is_not_ready_and_says_so_until_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await scene.owner("a"), scene.router("b")
        standby.start()
        await scene.clock.sleep(3.0)
        owner.kill()
        seq, scene.server.data.lease["seq"] = scene.server.data.lease["seq"], "abc"
        await scene.clock.sleep(10.0)
        status = standby.parts.view.status(scene.clock.now())
        assert not status.ready_to_take
        assert any(LEASE in sentence and "seq" in sentence for sentence in status.drift)
        assert sum(LEASE in line for line in caplog.messages) == 1, "told once"
        scene.server.data.lease["seq"] = seq
        await scene.until(lambda: standby.owns, limit_s=8.0)
        assert standby.parts.view.status(scene.clock.now()).drift == ()

    play(script)


def test_a_router_that_starts_meanwhile_waits_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("a")
        owner.kill()
        ttl_ms, scene.server.data.lease["ttl_ms"] = scene.server.data.lease["ttl_ms"], str(10**15)
        late = scene.router("b")
        late.start()
        await scene.clock.sleep(20.0)
        assert not late.owns
        assert sum(LEASE in line for line in caplog.messages) <= 2, "by the keeper and by the checks at start"
        scene.server.data.lease["ttl_ms"] = ttl_ms
        await scene.until(lambda: late.owns, limit_s=25.0)

    play(script)


def test_a_router_that_starts_with_a_stored_handoff_of_nobodys_starts_without_it() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("a")
        await owner.parts.member.give_back("yield")
        owner.kill()
        scene.server.data.handoff["seq"] = "abc"
        late = scene.router("b")
        late.start()
        await scene.until(lambda: late.owns, limit_s=10.0)
        left = [fields["error"] for kind, fields in late.book.events if kind == "saved_state_left"]
        assert left == ["narwhal:{c}:handoff: seq is no integer from 0 to 9007199254740992"]
        assert (await scene.stored()).epoch == late.parts.gate.epoch

    play(script)


def test_a_list_of_routers_that_cannot_be_read_keeps_nobody_from_owning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is for people and for ordering."""

    async def damaged(registry: ScriptRegistry, *, timeout_s: float) -> None:
        raise StoreDamaged("router_list: WRONGTYPE")

    monkeypatch.setattr(ScriptRegistry, "routers", damaged)

    async def script(scene: Scene) -> None:
        first, second = scene.router("a"), scene.router("b")
        first.start()
        await scene.until(lambda: first.owns, limit_s=10.0)
        second.start()
        await scene.clock.sleep(2.0)
        first.kill()
        await scene.until(lambda: second.owns, limit_s=10.0)

    play(script)
