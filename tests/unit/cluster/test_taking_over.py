"""What a new owner makes of old, foreign and superseded state: memberships over one in-memory server."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest

from narwhal.model.control import RouterState
from narwhal.model.engine import Role
from narwhal.model.evidence import HealthProbed, ProbeOutcome
from narwhal.model.request import Outcome
from narwhal.policy.handoff_codec import decode, encode
from tests.unit.cluster.cluster_rig import DeadFeed, Scene, play
from tests.unit.cluster.test_membership import SWAPPED, change_roles

BACK = {"e0": Role.DECODE, "e1": Role.PREFILL}
FEW = 20
"""Readings, those of the mirror beside the opening's too; one that does not pause makes thousands."""


@pytest.mark.parametrize(("max_age_s", "owing"), [(30.0, ()), (2.0, ("e0", "e1"))])
def test_old_state_never_keeps_a_router_from_owning_but_its_engines_owe_checks(
    max_age_s: float, owing: tuple[str, ...]
) -> None:
    async def script(scene: Scene) -> None:
        first = await scene.owner("r0")
        change_roles(first, SWAPPED)
        first.totals.finished(Outcome.SERVED)
        await first.parts.publisher.snapshot()
        second, introduced = scene.router("r1", max_handoff_age_s=max_age_s), []
        second.parts.takeover.introduce = lambda: introduced.append(second.parts.gate.sight.state)
        second.start()
        await scene.until(lambda: second.parts.mirror.document is not None)
        await scene.clock.sleep(1.0)
        first.kill()
        await scene.until(lambda: second.owns, limit_s=6.0)
        assert second.fleet.standings.unverified() == owing
        assert introduced == [RouterState.RESTORING] * (2 if owing else 1)
        assert second.fleet.roles() == {"e0": Role.PREFILL, "e1": Role.DECODE}
        assert second.totals.total().served == 1
        for iid in owing:
            second.fleet.step(HealthProbed(iid, ProbeOutcome.GOOD), 0.0)
        assert second.fleet.available(0.0) == ("e0", "e1")

    play(script)


def test_a_store_that_was_silent_is_read_again_before_the_first_write() -> None:
    """What the successor could not read at once is newer than its mirror."""

    async def script(scene: Scene) -> None:
        first = await scene.owner("r0")
        change_roles(first, SWAPPED)
        first.totals.finished(Outcome.SERVED)
        await first.parts.publisher.snapshot()
        second = scene.router("r1", feed=DeadFeed(scene.server))
        second.start()
        await scene.clock.sleep(1.0)
        second.handoffs.deaf = True
        change_roles(first, BACK)
        await first.parts.publisher.snapshot()
        first.kill()
        await scene.until(lambda: second.parts.gate.sight.state is RouterState.RESTORING)
        looked = second.handoffs.loads
        await scene.until(lambda: second.handoffs.loads > looked)
        second.handoffs.deaf = False
        await scene.until(lambda: second.owns, limit_s=1.0)
        assert second.fleet.roles() == BACK
        assert (await scene.stored()).epoch == second.parts.gate.epoch

    play(script)


@pytest.mark.parametrize("full", [False, True], ids=["written", "full for a second"])
def test_a_store_that_is_never_read_is_asked_a_few_times_and_owned_all_the_same(full: bool) -> None:
    """A full one refuses totals and the first write, and has told all the same."""

    async def script(scene: Scene) -> None:
        router = scene.router("r0", feed=DeadFeed(scene.server))
        router.start()
        await scene.clock.sleep(1.0)
        router.handoffs.deaf, router.handoffs.full, router.handoffs.slow = not full, full, full
        await scene.until(lambda: router.parts.gate.sight.state is RouterState.RESTORING)
        before = router.handoffs.loads
        await scene.until(lambda: router.owns, limit_s=4.0)
        assert router.handoffs.loads - before <= FEW

    play(script)


def test_suspects_may_be_looked_at_once_the_gate_is_open() -> None:
    async def script(scene: Scene) -> None:
        first = await scene.owner("r0")
        second, opened = scene.router("r1"), []
        gate = second.parts.gate
        second.parts.member.opened = lambda: opened.append(gate.may_admit(scene.clock.now()))
        second.start()
        await scene.until(lambda: second.parts.mirror.document is not None)
        assert opened == []
        first.kill()
        await scene.until(lambda: second.owns, limit_s=6.0)
        assert opened == [True]

    play(script)


def test_what_this_version_does_not_know_survives_a_takeover_by_it() -> None:
    """A newer router of the same schema version wrote it; the next one finds it as it was, only older."""

    async def script(scene: Scene) -> None:
        first = await scene.owner("r0")
        document = first.parts.publisher.document()
        assert document is not None
        holds = {"e0": {"kind": "quarantine", "remaining_s": 500.0, "reason": "connection"}}
        newer = replace(
            document,
            holds=holds,
            lifecycle={**document.lifecycle, "of_a_newer_one": {"id": "w1"}},
            extra={"of_a_newer_router": {"a": [1, 2]}},
        )
        scene.server.data.handoff["document"] = encode(newer)
        scene.server.data.handoff["crc32"] = str(zlib.crc32(encode(newer)))
        first.kill()
        second = await scene.owner("r1")
        await scene.clock.sleep(3.0)
        kept = decode((await scene.stored()).document)
        assert kept.epoch == second.parts.gate.epoch
        assert kept.extra == {"of_a_newer_router": {"a": [1, 2]}}
        assert kept.lifecycle["of_a_newer_one"] == {"id": "w1"}
        assert 480.0 < kept.holds["e0"]["remaining_s"] < 499.0
        tops = scene.server.data.log_top
        await scene.clock.sleep(3.0)
        assert scene.server.data.log_top == tops, "time that runs on is no change to publish"

    play(script)


def test_an_engine_that_knows_a_higher_epoch_makes_the_owner_acquire_above_it() -> None:
    async def script(scene: Scene) -> None:
        router = await scene.owner("r0")
        before = router.parts.gate.epoch
        assert router.parts.gate.overruled("e0", before + 50)
        assert not router.owns
        await scene.until(lambda: router.owns, limit_s=1.0)
        assert router.parts.gate.epoch == before + 51
        assert not router.parts.gate.overruled("e0", before + 50)

    play(script)


def test_a_superseded_owner_that_an_engine_tells_so_stands_by() -> None:
    """Its clock stood still: it does not know that its lease is another's."""

    async def script(scene: Scene) -> None:
        router = await scene.owner("r0")
        lease = scene.server.data.lease
        later = int(lease["epoch"]) + 1
        scene.server.data.lease = {
            **lease,
            "token": "another",
            "epoch": str(later),
            "owner": "r1",
            "seq": "3",
        }
        assert router.parts.gate.overruled("e0", later)
        assert not router.owns
        await scene.until(lambda: router.parts.gate.sight.state is RouterState.STANDBY, limit_s=1.0)
        await scene.clock.sleep(3.0)
        assert router.parts.gate.refusal(scene.clock.now()) == "standby"

    play(script)
