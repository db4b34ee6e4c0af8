"""What no router wrote is in the store: routers go on, say which key, and take it up again once mended."""

from __future__ import annotations

import zlib
from typing import Any

import orjson
import pytest

from narwhal.errors import SavedStateError, StoreDamaged
from narwhal.model.handoff import CheckpointRecord
from narwhal.model.lease import MAX_EPOCH, Published
from narwhal.store.memory import MemoryCheckpoint
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


# --- a document with a field of a wrong type --------------------------------------------------------------


async def drained_and_gone(scene: Scene) -> dict[str, Any]:
    """The document of an owner that drained e0 and ended."""
    owner = await scene.owner("a")
    owner.fleet.upkeep.drain("e0", deadline_at=2_000_000_000.0)
    assert isinstance(await owner.parts.publisher.snapshot(), Published)
    await owner.parts.member.shut_down()
    owner.kill()
    fields: dict[str, Any] = orjson.loads((await scene.stored()).document)
    return fields


def spoil(scene: Scene, fields: dict[str, Any]) -> None:
    """Whole, and not what a router wrote."""
    document = orjson.dumps(fields)
    scene.server.data.handoff |= {"document": document, "crc32": str(zlib.crc32(document))}


WRONG = [("records", None), ("records", {}), ("records", "x"), ("records", ["e0"]), ("wave", 5), ("", None)]


@pytest.mark.parametrize(("part", "value"), WRONG)
@pytest.mark.parametrize("where", ["store", "file"])
def test_the_only_document_ends_a_resume_and_places_nobody_unchecked_without(
    part: str, value: Any, where: str
) -> None:
    async def script(scene: Scene) -> None:
        fields = await drained_and_gone(scene)
        bad = {**fields, "lifecycle": {**fields["lifecycle"], part: value} if part else value}
        files = [MemoryCheckpoint(), MemoryCheckpoint()]
        if where == "store":
            spoil(scene, bad)
        else:
            scene.server.flush()
            for file in files:
                file.write(CheckpointRecord(bad))
        with pytest.raises(SavedStateError, match=f"lifecycle.{part}" if part else "lifecycle"):
            await scene.router("b", resume=True, checkpoint=files[0]).parts.member.run()
        late = scene.router("c", checkpoint=files[1])
        late.start()
        await scene.until(lambda: late.owns, limit_s=40.0)
        assert "saved_state_left" in late.book.kinds()
        assert late.fleet.upkeep.wave.reason.startswith("whole-wave restart required: ")
        assert late.fleet.available(scene.clock.now()) == ()

    play(script)


def test_a_good_document_in_the_store_is_taken_instead_of_a_damaged_file(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(scene: Scene) -> None:
        fields = await drained_and_gone(scene)
        file = MemoryCheckpoint()
        file.write(CheckpointRecord({**fields, "lifecycle": {**fields["lifecycle"], "records": None}}))
        late = await scene.owner("b", resume=True, checkpoint=file)
        assert any("lifecycle.records must be a list" in line for line in caplog.messages)
        assert late.fleet.upkeep.drains.out() == {"e0"} and not late.fleet.upkeep.wave.reason

    play(script)


def test_of_a_field_that_tells_nothing_of_drains_only_that_field_is_lost() -> None:
    async def script(scene: Scene) -> None:
        fields = await drained_and_gone(scene)
        spoil(scene, {**fields, "streaks": []})
        late = scene.router("b")
        late.start()
        await scene.until(lambda: late.owns, limit_s=40.0)
        assert late.fleet.upkeep.drains.out() == {"e0"} and not late.fleet.upkeep.wave.reason
        assert late.fleet.standings.unverified() == ("e0", "e1")

    play(script)
