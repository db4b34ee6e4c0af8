"""Opening, publishing, mirroring, taking over, giving back: memberships over one in-memory server."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from narwhal.errors import ConfigError, SavedStateError, StoreProtocolError
from narwhal.model.control import RouterState
from narwhal.model.engine import EngineSpec, Role
from narwhal.model.handoff import CheckpointRecord, LogPosition
from narwhal.model.placement import Demand
from narwhal.model.request import Outcome
from narwhal.model.settings import LeaseTimings
from narwhal.model.store_call import FeedBatch
from narwhal.policy.handoff_codec import to_fields
from tests.unit.cluster.cluster_rig import DeadFeed, Router, Scene, play

SWAPPED = {"e0": "prefill", "e1": "decode"}


def change_roles(router: Router, roles: dict[str, str]) -> None:
    document = router.parts.publisher.document()
    assert document is not None
    router.fleet.restore(replace(document, roles=roles), 0.0)


# --- opening -----------------------------------------------------------------------------------------


def test_the_gate_opens_only_after_the_first_fenced_write() -> None:
    async def script(scene: Scene) -> None:
        router = scene.router("r0")
        router.handoffs.full = True
        router.start()
        await scene.until(lambda: router.parts.gate.sight.state is RouterState.RESTORING)
        assert not router.owns
        assert router.parts.gate.refusal(scene.clock.now()) == "standby"
        router.handoffs.full = False
        await scene.until(lambda: router.owns, limit_s=0.5)
        assert (await scene.stored()).epoch == router.parts.gate.epoch
        await scene.until(lambda: router.parts.gate.sight.state is RouterState.OWNER)

    play(script)


def test_a_full_store_blocks_the_handoff_and_not_the_service() -> None:
    async def script(scene: Scene) -> None:
        router = scene.router("r0")
        router.handoffs.full = True
        router.start()
        await scene.until(lambda: router.owns, limit_s=8.0)
        status = router.parts.view.status(scene.clock.now())
        assert "OOM" in status.blocked
        router.handoffs.full = False
        await router.parts.publisher.snapshot()
        assert router.parts.view.status(scene.clock.now()).blocked == ""

    play(script)


def test_a_higher_stored_epoch_is_acquired_above() -> None:
    async def script(scene: Scene) -> None:
        router = scene.router("r0")
        router.handoffs.full = True
        router.start()
        await scene.until(lambda: router.parts.gate.sight.state is RouterState.RESTORING)
        scene.server.data.handoff = {"epoch": "9000000000", "seq": "1", "upto": "0-0", "at_ms": "0"}
        scene.server.data.handoff |= {"schema_version": "1", "crc32": "0", "document": b"{}"}
        router.handoffs.full = False
        await scene.until(lambda: router.owns, limit_s=4.0)
        assert router.parts.gate.epoch > 9_000_000_000

    play(script)


def test_an_owner_whose_write_is_refused_for_good_is_fenced() -> None:
    async def script(scene: Scene) -> None:
        first = await scene.owner("r0")
        lease = scene.server.data.lease
        scene.server.data.lease = {**lease, "token": "another", "epoch": str(int(lease["epoch"]) + 1)}
        await first.parts.publisher.snapshot()
        assert not first.owns
        assert "a write was refused" in first.parts.gate.fenced_why(scene.clock.now())

    play(script)


# --- publishing and mirroring ------------------------------------------------------------------------


def test_a_standby_mirrors_snapshots_and_deltas() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        standby = scene.router("r1")
        standby.start()
        await scene.until(lambda: standby.parts.mirror.document is not None)
        owner.fleet.streaks = {"e0": {"timeout": 2}}
        before = (await scene.stored()).seq
        await owner.parts.publisher.publish_changes()
        await scene.until(lambda: standby.parts.mirror.document.streaks == {"e0": {"timeout": 2}})  # type: ignore[union-attr]
        assert (await scene.stored()).seq == before
        change_roles(owner, SWAPPED)
        await owner.parts.publisher.publish_changes()
        assert (await scene.stored()).seq == before + 1
        await scene.until(lambda: standby.parts.mirror.document.roles == SWAPPED)  # type: ignore[union-attr]
        assert standby.parts.mirror.age_s(scene.clock.now()) is not None

    play(script)


def test_nothing_is_sent_while_only_time_and_counters_change() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        top = scene.server.data.log_top
        owner.totals.finished(Outcome.SERVED)
        await owner.parts.publisher.publish_changes()
        assert scene.server.data.log_top == top

    play(script)


def test_a_delta_without_an_answer_is_read_back_and_not_said_twice() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        owner.fleet.streaks = {"e0": {"timeout": 1}}
        owner.handoffs.mute = True
        with pytest.raises(Exception, match="no answer"):
            await owner.parts.publisher.publish_changes()
        top = scene.server.data.log_top
        owner.handoffs.mute = False
        await owner.parts.publisher.publish_changes()
        assert scene.server.data.log_top == top
        owner.fleet.streaks = {}
        await owner.parts.publisher.publish_changes()
        assert scene.server.data.log_top.n == top.n + 1

    play(script)


def test_a_delta_that_another_one_took_the_place_of_becomes_a_snapshot() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        owner.fleet.streaks = {"e0": {"timeout": 1}}
        owner.handoffs.mute = True
        with pytest.raises(Exception, match="no answer"):
            await owner.parts.publisher.publish_changes()
        owner.handoffs.mute = False
        owner.fleet.streaks = {"e0": {"timeout": 2}}
        await owner.parts.publisher.publish_changes()
        document = orjson.loads((await scene.stored()).document)
        assert document["streaks"] == {"e0": {"timeout": 2}}

    play(script)


class UnreadableFeed:
    """A log with an entry of a newer version."""

    async def read(self, after: LogPosition, *, block_s: float) -> FeedBatch:
        raise StoreProtocolError("log entry b'7-2' cannot be read: unknown kind")

    async def aclose(self) -> None:
        """Nothing is held."""


def test_a_log_entry_that_cannot_be_read_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def script(scene: Scene) -> None:
        await scene.owner("r0")
        standby = scene.router("r1")
        standby.parts.mirror._feed = UnreadableFeed()
        standby.start()
        await scene.clock.sleep(10.0)
        told = [message for message in caplog.messages if message.startswith("mirror: ")]
        assert told == ["mirror: log entry b'7-2' cannot be read: unknown kind"]
        assert not standby.parts.roster.ready_to_take

    play(script)


def test_a_mirror_is_current_also_when_there_is_nothing() -> None:
    async def script(scene: Scene) -> None:
        standby = scene.router("r1")
        await standby.parts.mirror.step()
        assert standby.parts.mirror.age_s(scene.clock.now()) == 0.0
        assert standby.parts.mirror.document is None

    play(script)


def test_a_mirror_reads_anew_after_a_restart_and_forgets_nothing() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        standby = scene.router("r1")
        standby.start()
        await scene.until(lambda: standby.parts.mirror.document is not None)
        owner.kill()
        scene.server.restart()
        await scene.clock.sleep(2.0)
        mirror = standby.parts.mirror
        assert mirror.document is not None and mirror.document.epoch == owner.parts.gate.epoch
        assert mirror.age_s(scene.clock.now()) < 1.0  # type: ignore[operator]

    play(script)


def test_a_torn_document_leaves_the_mirror_and_is_told() -> None:
    async def script(scene: Scene) -> None:
        await scene.owner("r0")
        scene.server.data.handoff["document"] = b"{torn"
        standby = scene.router("r1")
        await standby.parts.mirror.step()
        assert standby.parts.mirror.document is None
        assert "torn" in standby.parts.mirror.problem

    play(script)


# --- taking over -------------------------------------------------------------------------------------


def test_a_standby_takes_over_roles_counters_and_unknown_fields() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await scene.owner("r0"), scene.router("r1")
        standby.start()
        change_roles(owner, SWAPPED)
        owner.totals.finished(Outcome.SERVED)
        await owner.parts.publisher.publish_changes()
        await scene.clock.sleep(3.0)
        owner.kill()
        await scene.until(lambda: standby.owns)
        assert standby.fleet.roles() == {"e0": Role.PREFILL, "e1": Role.DECODE}
        assert standby.totals.total().served == 1
        assert standby.parts.gate.epoch > owner.parts.gate.epoch
        assert standby.parts.takeover.plan is not None
        assert not standby.parts.takeover.plan.cautious

    play(script)


@pytest.mark.parametrize("resume", [True, False])
def test_a_new_start_takes_the_saved_roles_only_with_resume(resume: bool) -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        change_roles(owner, SWAPPED)
        await owner.parts.publisher.publish_changes()
        await owner.parts.member.shut_down()
        again = await scene.owner("r0", resume=resume)
        saved = again.fleet.roles() == {"e0": Role.PREFILL, "e1": Role.DECODE}
        assert saved is resume

    play(script)


def test_an_empty_store_is_resumed_from_the_checkpoint_with_its_counters() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        change_roles(owner, SWAPPED)
        owner.totals.finished(Outcome.SERVED)
        await scene.clock.sleep(0.1)
        await owner.parts.publisher.checkpoint()
        epoch = owner.parts.gate.epoch
        owner.kill()
        scene.server.restart()
        again = await scene.owner("r0", resume=True, checkpoint=owner.checkpoint)
        assert again.fleet.roles() == {"e0": Role.PREFILL, "e1": Role.DECODE}
        assert again.totals.total().served == 1
        assert again.parts.gate.epoch > epoch

    play(script)


def test_counters_of_the_checkpoint_are_not_added_to_totals_that_were_not_read() -> None:
    async def script(scene: Scene) -> None:
        owner, other = await scene.owner("r0"), scene.router("r1")
        other.start()
        owner.totals.finished(Outcome.SERVED)
        other.totals.finished(Outcome.SERVED)
        await scene.until(lambda: owner.totals.total().served == 2)
        await owner.parts.publisher.checkpoint()
        owner.kill()
        other.kill()
        scene.server.data.handoff.clear()
        again = scene.router("r0", resume=True, checkpoint=owner.checkpoint)
        again.handoffs.slow = True
        again.start()
        await scene.until(lambda: again.owns)
        again.handoffs.slow = False
        await scene.clock.sleep(2.0)
        assert again.totals.total().served == 2

    play(script)


def test_the_roster_tells_what_a_router_has_in_hand() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        owner.fleet.reserve_prefill(Demand(10, 10), scene.clock.now())
        await scene.clock.sleep(3.0)
        (entry,) = owner.parts.roster.routers
        assert entry.resident == 1

    play(script)


def test_a_mirror_that_was_never_read_does_not_forbid_to_own() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        change_roles(owner, SWAPPED)
        await owner.parts.publisher.publish_changes()
        blind = scene.router("r1", feed=DeadFeed(scene.server))
        blind.start()
        await scene.clock.sleep(3.0)
        assert not blind.parts.view.status(scene.clock.now()).ready_to_take
        owner.kill()
        await scene.until(lambda: blind.owns, limit_s=8.0)
        assert blind.fleet.roles() == {"e0": Role.PREFILL, "e1": Role.DECODE}

    play(script)


def test_a_fenced_owner_keeps_its_last_state_as_its_mirror() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        change_roles(owner, SWAPPED)
        scene.server.down = True
        await scene.until(lambda: not owner.owns)
        await scene.until(lambda: owner.parts.gate.sight.state is RouterState.STANDBY)
        mirror = owner.parts.mirror
        assert mirror.document is not None and mirror.document.roles == SWAPPED
        assert owner.parts.gate.refusal(scene.clock.now()) == "lease store unavailable"
        scene.server.down = False
        await scene.until(lambda: owner.owns, limit_s=10.0)
        assert owner.fleet.roles()["e0"] is Role.PREFILL

    play(script)


# --- giving back -------------------------------------------------------------------------------------


def test_a_clean_shutdown_hands_over_in_milliseconds_and_leaves_the_roster() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await scene.owner("r0"), scene.router("r1")
        standby.start()
        await scene.clock.sleep(3.0)
        owner.totals.finished(Outcome.SERVED)
        began = scene.loop.time()
        await owner.parts.member.shut_down()
        assert owner.parts.gate.refusal(scene.clock.now()) == "shutting down"
        await scene.until(lambda: standby.owns, limit_s=1.0)
        assert scene.loop.time() - began < 0.1
        assert standby.totals.total().served == 1
        names = {entry.router_id for entry in await standby.parts.roster._registry.routers(timeout_s=1.0)}
        assert names == {"r1"}

    play(script)


def test_giving_back_without_a_lease_says_so() -> None:
    async def script(scene: Scene) -> None:
        standby = scene.router("r1")
        assert await standby.parts.member.give_back("yield") is False

    play(script)


def test_a_yield_while_the_store_is_silent_ends() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        scene.server.down = True
        assert await owner.parts.member.give_back("yield") is False, "nobody confirmed it"
        assert not owner.owns

    play(script)


def test_a_yielding_router_holds_new_requests_until_the_other_owns() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await scene.owner("r0"), scene.router("r1")
        standby.start()
        await scene.clock.sleep(3.0)
        owner.main.spawn(owner.parts.member.give_back("yield"))
        await scene.until(lambda: not owner.owns)
        await owner.parts.gate.decided(0.5)
        assert standby.owns

    play(script)


# --- start -------------------------------------------------------------------------------------------


def test_a_cluster_that_serves_another_fleet_is_refused() -> None:
    async def script(scene: Scene) -> None:
        await scene.owner("r0")
        stranger = scene.router("r1", engines=(EngineSpec("x0", "http://x0"),))
        with pytest.raises(SavedStateError, match=r"serves another fleet \(e.g. e0, e1\): pass --cluster"):
            await stranger.parts.member.run()

    play(script)


def test_an_id_that_a_live_router_has_is_refused() -> None:
    async def script(scene: Scene) -> None:
        await scene.owner("r0")
        twin = scene.router("r0")
        with pytest.raises(ConfigError, match="r0 is taken"):
            await twin.parts.member.run()
        assert 15.0 < scene.loop.time() < 30.0

    play(script)


def test_the_id_of_a_dead_predecessor_is_free_when_its_entry_ends() -> None:
    async def script(scene: Scene) -> None:
        first = await scene.owner("r0")
        first.kill()
        await scene.owner("r0")

    play(script)


def test_an_entry_that_says_nothing_new_is_no_life() -> None:
    async def script(scene: Scene) -> None:
        first = await scene.owner("r0")
        first.kill()
        scene.server.step_clock(-3600.0)
        began = scene.loop.time()
        await scene.owner("r0")
        assert scene.loop.time() - began < 25.0

    play(script)


def test_an_unreachable_store_is_waited_for() -> None:
    async def script(scene: Scene) -> None:
        scene.server.down = True
        router = scene.router("r0")
        router.start()
        await scene.clock.sleep(30.0)
        assert router.parts.gate.refusal(scene.clock.now()) == "lease store unavailable"
        scene.server.down = False
        await scene.until(lambda: router.owns, limit_s=10.0)

    play(script)


def test_resume_with_only_a_torn_document_is_refused_and_a_good_one_beside_it_is_taken() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        document = owner.parts.publisher.document()
        assert document is not None
        await owner.parts.member.shut_down()
        owner.kill()
        scene.server.data.handoff["document"] = b"{torn"
        with pytest.raises(SavedStateError, match="torn"):
            await scene.router("r1", resume=True).parts.member.run()
        good = type(owner.checkpoint)()
        good.write(CheckpointRecord(to_fields(document)))
        resumed = await scene.owner("r1", resume=True, checkpoint=good)
        assert "saved_state_left" in resumed.book.kinds()

    play(script)


def test_a_release_is_awaited_for_as_long_as_it_is_repeated_also_with_a_long_ttl() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0", timings=replace(LeaseTimings(), ttl_s=12.0))
        scene.loop.call_later(9.0, lambda: setattr(scene.server, "down", False))
        scene.server.down = True
        assert await owner.parts.member.give_back("yield") is True

    play(script)


@pytest.mark.parametrize("resume", [True, False])
def test_resume_with_no_file_and_an_empty_store_says_that_it_starts_fresh(
    resume: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(scene: Scene) -> None:
        await scene.owner("r0", resume=resume)
        told = [record.message for record in caplog.records if "starting fresh" in record.message]
        assert told == ["there is no saved state, neither here nor in the store: starting fresh"] * resume

    play(script)


def test_resume_from_a_file_or_the_store_does_not_say_that_it_starts_fresh(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        await owner.parts.member.shut_down()
        owner.kill()
        await scene.owner("r1", resume=True)
        assert "starting fresh" not in caplog.text

    play(script)


def test_resume_while_the_store_is_unreachable_loads_the_file_and_never_owns() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0")
        change_roles(owner, SWAPPED)
        await owner.parts.publisher.checkpoint()
        owner.kill()
        scene.server.restart()
        scene.server.down = True
        again = scene.router("r0", resume=True, checkpoint=owner.checkpoint)
        again.start()
        for _ in range(120):
            await scene.clock.sleep(1.0)
            assert not again.owns
        assert again.parts.gate.refusal(scene.clock.now()) == "lease store unavailable"
        held = again.parts.mirror.document
        assert held is not None
        assert held.roles == SWAPPED
        scene.server.down = False
        await scene.until(lambda: again.owns, limit_s=12.0)
        assert again.fleet.roles() == {"e0": Role.PREFILL, "e1": Role.DECODE}

    play(script)


# --- what is shown -----------------------------------------------------------------------------------


def test_the_cluster_document_names_lease_routers_and_changes() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await scene.owner("r0"), scene.router("r1")
        standby.start()
        await scene.clock.sleep(5.0)
        shown = standby.parts.view.cluster(scene.clock.now())
        assert (shown.lease.state, shown.lease.router_id) == ("held", "r0")
        assert shown.lease.holder == owner.parts.gate.holder
        assert [(router.router_id, router.role) for router in shown.routers] == [
            ("r0", "active"),
            ("r1", "standby"),
        ]
        assert [(router.ready_to_take, router.mirror_age_s is None) for router in shown.routers] == [
            (False, True),
            (True, False),
        ]
        assert shown.changes[-1].kind == "acquired"
        own = owner.parts.view.cluster(scene.clock.now())
        assert 0 < own.lease.valid_for_s <= 4.0  # type: ignore[operator]
        status = standby.parts.view.status(scene.clock.now())
        assert status.ready_to_take and status.owner is not None and status.owner.url == "http://r0"

    play(script)


def test_a_router_that_shuts_down_is_nobodys_standby_while_its_streams_drain() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await scene.owner("r0"), scene.router("r1")
        standby.start()
        await scene.clock.sleep(3.0)
        await owner.parts.member.shut_down()
        await scene.until(lambda: standby.owns)
        # It has the handed over state in its mirror still: without the order to end it would be fit.
        await scene.until(lambda: owner.parts.mirror.read_at is not None)
        assert not owner.parts.view.status(scene.clock.now()).ready_to_take
        assert not owner.parts.roster.entry(scene.clock.now()).ready_to_take

    play(script)


def test_a_release_is_remembered_with_its_reason() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await scene.owner("r0"), scene.router("r1")
        standby.start()
        await scene.clock.sleep(3.0)
        assert await owner.parts.member.give_back("yield")
        changes = owner.parts.view.cluster(scene.clock.now()).changes
        released = [one for one in changes if one.kind == "released"]
        assert [one.reason for one in released] == ["yield"]

    play(script)


def test_a_standby_writes_checkpoints_that_keep_the_floor() -> None:
    async def script(scene: Scene) -> None:
        owner, standby = await scene.owner("r0"), scene.router("r1")
        standby.start()
        await scene.clock.sleep(5.0)
        record = standby.checkpoint.record
        assert record is not None
        assert record.epoch_floor == owner.parts.gate.epoch
        assert record.ttl_ms_max == 5000
        assert record.document["run"] == owner.parts.publisher._state.identity.run

    play(script)
