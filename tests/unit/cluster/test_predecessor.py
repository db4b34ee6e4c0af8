"""cluster/start.py: a starting router and whoever had its ID, or the lease, on this host before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from narwhal.errors import ConfigError
from narwhal.model.lease import OwnerMeta
from narwhal.policy.death import ProcessSight, Signalled
from tests.unit.cluster.cluster_rig import Router, Scene, play

META = OwnerMeta("r0", "http://r0", "", "host", "machine", "boot", "pid:[1]", 400, "700")
GONE = ProcessSight(Signalled.NO_SUCH_PROCESS)
Look = Callable[[int], ProcessSight]


def of(name: str, pid: int = 400, **facts: Any) -> OwnerMeta:
    return replace(META, router_id=name, url=f"http://{name}", pid=pid, **facts)


def says(sight: ProcessSight) -> Look:
    return lambda pid: sight


async def dead_owner(scene: Scene, name: str = "r0", **facts: Any) -> Router:
    """An owner that was killed just now, with nobody to speak for it."""
    owner = await scene.owner(name, meta=of(name, **facts))
    await scene.clock.sleep(2.5)
    owner.kill()
    return owner


async def owns_after_s(scene: Scene, router: Router) -> float:
    began = scene.clock.now()
    router.start()
    await scene.until(lambda: router.owns)
    return scene.clock.now() - began


def deaths(router: Router) -> list[str]:
    return [fields["freed"] for kind, fields in router.book.events if kind == "proof_of_death"]


def test_a_provably_dead_predecessor_frees_lease_and_id_at_once() -> None:
    async def script(scene: Scene) -> None:
        await dead_owner(scene)
        heir = scene.router("r0", meta=of("r0", 500), look=says(GONE))
        assert await owns_after_s(scene, heir) < 1.0
        assert deaths(heir) == ["its lease", "its ID"]

    play(script)


def test_the_lease_of_another_router_of_this_host_is_freed_too() -> None:
    async def script(scene: Scene) -> None:
        await dead_owner(scene, "r1")
        heir = scene.router("r0", meta=of("r0", 500), look=says(GONE))
        assert await owns_after_s(scene, heir) < 1.0
        assert deaths(heir) == ["its lease"]

    play(script)


@pytest.mark.parametrize(
    "sight",
    [
        pytest.param(ProcessSight(Signalled.FORBIDDEN, "S", "999"), id="EPERM"),
        pytest.param(ProcessSight(Signalled.REACHED), id="unreadable /proc"),
        pytest.param(ProcessSight(Signalled.REACHED, "Z", "999"), id="state Z"),
        pytest.param(ProcessSight(Signalled.REACHED, "S", "700"), id="it lives"),
    ],
)
def test_without_proof_the_lease_is_watched_and_the_id_waited_for(sight: ProcessSight) -> None:
    async def script(scene: Scene) -> None:
        await dead_owner(scene)
        heir = scene.router("r0", meta=of("r0", 500), look=says(sight))
        assert await owns_after_s(scene, heir) > 10.0
        assert deaths(heir) == []

    play(script)


@pytest.mark.parametrize("fact", ["host", "machine_id", "boot_id", "pidns"])
def test_a_predecessor_of_another_place_is_never_judged(fact: str) -> None:
    """The same PID elsewhere says nothing; `look` would call it dead."""

    async def script(scene: Scene) -> None:
        await dead_owner(scene, **{fact: "elsewhere"})
        heir = scene.router("r0", meta=of("r0", 500), look=says(GONE))
        assert await owns_after_s(scene, heir) > 10.0

    play(script)


def test_the_release_is_a_compare_and_set_on_the_version_read_before_the_proof() -> None:
    """The owner renews between the read and the release: whatever was proved, its lease stays."""

    async def script(scene: Scene) -> None:
        owner = await scene.owner("r1", meta=of("r1"))

        def renewing(pid: int) -> ProcessSight:
            lease = scene.server.data.lease
            lease["seq"] = str(int(lease["seq"]) + 1)
            return GONE

        token = owner.parts.gate.grip.token if owner.parts.gate.grip else ""
        heir = scene.router("r0", meta=of("r0", 500), look=renewing)
        heir.start()
        await scene.clock.sleep(3.0)
        lease = scene.server.data.lease
        assert (lease["state"], lease["token"]) == ("held", token)
        assert deaths(heir) == [] and not heir.owns

    play(script)


def test_a_router_that_lives_under_the_same_id_is_not_displaced() -> None:
    async def script(scene: Scene) -> None:
        owner = await scene.owner("r0", meta=of("r0"))
        alive = ProcessSight(Signalled.REACHED, "S", "700")
        twin = scene.router("r0", meta=of("r0", 500), look=says(alive))
        with pytest.raises(ConfigError, match="r0 is taken"):
            await twin.parts.member.run()
        assert owner.owns

    play(script)


def test_of_two_that_start_at_once_under_one_id_the_second_ends() -> None:
    """Both read the roster before either has announced itself: the announcement decides."""

    async def script(scene: Scene) -> None:
        twins = [scene.router("r0", meta=of("r0", pid)) for pid in (400, 500)]
        runs = [asyncio.ensure_future(twin.parts.member.run()) for twin in twins]
        await scene.clock.sleep(8.0)
        for run in runs:
            run.cancel()
        first, second = await asyncio.gather(*runs, return_exceptions=True)
        assert isinstance(first, asyncio.CancelledError)
        assert isinstance(second, ConfigError) and "r0 is taken" in str(second)

    play(script)


def test_an_entry_that_fell_silent_but_does_not_end_is_replaced() -> None:
    """Redis's clock was set back: a dead router's entry outlives its 15 s, and frees the ID all the same."""

    async def script(scene: Scene) -> None:
        await dead_owner(scene)
        scene.server.step_clock(-3600)
        heir = scene.router("r0", meta=of("r0", 500), look=says(ProcessSight(Signalled.FORBIDDEN)))
        heir.start()
        await scene.until(lambda: heir.owns, limit_s=40.0)
        await scene.clock.sleep(5.0)
        assert heir.owns and [one.process.pid for one in heir.parts.roster.routers] == [500]

    play(script)


def test_a_dead_standby_frees_its_id() -> None:
    async def script(scene: Scene) -> None:
        await scene.owner("r1", meta=of("r1", 300))
        standby = scene.router("r0", meta=of("r0"))
        standby.start()
        await scene.clock.sleep(3.0)
        standby.kill()
        alive, gone = ProcessSight(Signalled.REACHED, "S", "700"), GONE
        heir = scene.router("r0", meta=of("r0", 500), look=lambda pid: gone if pid == 400 else alive)
        began = scene.clock.now()
        heir.start()
        await scene.until(lambda: heir.parts.keeper.standing.may_compete)
        assert scene.clock.now() - began < 1.0
        assert deaths(heir) == ["its ID"]

    play(script)
