"""Drills of the warden with real processes: whatever ends a router, or stops it, or ends its warden.

Judged from outside: independent probers on /ready, the clients' own books, exit statuses, the store's keys.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.bookkeepers import crowd
from tests.support.prober import overlaps, probing
from tests.support.processes import eventually
from tests.support.router import Router
from tests.support.router_stage import TTL_S, Stage, epoch, served, stage

PROMPT_S = 3.5
"""Far below the lease's TTL, far above what a handover takes on a loaded machine."""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


def told(name: str, **figures: object) -> None:
    """One line of figures, for whoever reads the log."""
    print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in figures.items()), file=sys.stderr)


def takeover_s(standby: Router, event: Callable[[], object]) -> float:
    """From the event to the first 200 of the standby."""
    began = time.monotonic()
    event()
    eventually(standby.ready, what="takeover")
    return time.monotonic() - began


# --- every death of the router ---------------------------------------------------------------------

DEATHS = [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV]


@pytest.mark.parametrize("how", DEATHS, ids=lambda how: how.name)
def test_a_killed_owner_loses_no_count_and_its_lease_is_free_at_once(
    scene: Stage, how: signal.Signals
) -> None:
    """Kill -9 as the out-of-memory killer does it, and crashes: the counts are exactly the clients'."""
    owner, standby = scene.pair()
    before = epoch(owner)
    with probing(owner.url, standby.url) as probers, crowd([owner.url, standby.url], size=8) as clients:
        time.sleep(1.0)
        took_s = takeover_s(standby, lambda: os.kill(owner.pid, how))
        time.sleep(0.5)
    assert owner.process.ended() == 1, "a signal death is a crash"
    assert overlaps(probers) == []
    assert epoch(standby) > before
    eventually(lambda: served(standby) >= clients.served(), what="the counters")
    counted, answered, cut = served(standby), clients.served(), len(clients.failed)
    told(how.name, takeover_s=round(took_s, 3), answered=answered, counted=counted, cut=cut)
    assert took_s < PROMPT_S
    assert counted == answered
    assert cut <= 8


def killed_at_the_last_answer(owner: Router, standby: Router) -> tuple[int, float]:
    """Kills the owner while clients without a pause ask it alone: what they got, and the takeover."""
    with crowd([owner.url], size=2, pause_s=0.0) as clients:
        eventually(lambda: clients.served() >= 5, what="answers")
        took_s = takeover_s(standby, lambda: os.kill(owner.pid, signal.SIGKILL))
    assert owner.process.ended() == 1
    return clients.served(), took_s


def counts_exactly(router: Router, answered: int) -> None:
    eventually(lambda: served(router) >= answered, what="the counters")
    assert served(router) == answered


def test_the_last_count_is_the_wardens_where_the_flush_has_no_time(scene: Stage) -> None:
    """Owner after owner, each killed the moment its clients have answers: none of these is uncounted."""
    rounds = int(os.environ.get("NARWHAL_DRILL_ROUNDS", "3"))
    owner, standby = scene.pair()
    answered, worst_s = 0, 0.0
    for number in range(rounds):
        got, took_s = killed_at_the_last_answer(owner, standby)
        answered, worst_s = answered + got, max(worst_s, took_s)
        counts_exactly(standby, answered)
        owner, standby = standby, ready_standby(scene, "ab"[number % 2])
    told("kill -9 at the last answer", rounds=rounds, answered=answered, worst_takeover_s=round(worst_s, 3))


def ready_standby(scene: Stage, name: str) -> Router:
    router = scene.router(name, "--standby")
    eventually(lambda: router.get("/ready").get("ready_to_take") is True, what=f"{name} stands by")
    return router


def test_a_killed_router_is_back_under_its_own_id_at_once(scene: Stage) -> None:
    """The warden deletes its entry: nothing is waited for."""
    owner, standby = scene.pair()
    takeover_s(standby, lambda: os.kill(owner.pid, signal.SIGKILL))
    owner.process.ended()
    with scene.redis.client() as store:
        assert list(store.keys("*router:a")) == []
    began = time.monotonic()
    ready_standby(scene, "a")
    eventually(lambda: "a" in routers_of(standby), what="its entry")
    told("back under its own ID", after_s=round(time.monotonic() - began, 3))


def routers_of(router: Router) -> set[str]:
    return {one["router_id"] for one in router.get("/narwhal/cluster")["routers"]}


def test_a_kill_while_the_store_stands_still_is_settled_when_it_is_back(scene: Stage) -> None:
    """The warden asks again every quarter second; the lease has not run out by then."""
    owner, standby = scene.pair()
    with probing(owner.url, standby.url) as probers, crowd([owner.url, standby.url]) as clients:
        time.sleep(0.5)
        scene.redis.freeze()
        os.kill(owner.pid, signal.SIGKILL)
        time.sleep(1.5)
        assert not standby.ready()
        took_s = takeover_s(standby, scene.redis.thaw)
    assert owner.process.ended() == 1
    assert overlaps(probers) == []
    told("kill -9 while the store stands still", takeover_after_s=round(took_s, 3))
    assert took_s < PROMPT_S
    counts_exactly(standby, clients.served())


# --- stalls ----------------------------------------------------------------------------------------


def test_a_frozen_owner_is_killed_when_a_standby_is_ready(scene: Stage) -> None:
    owner, standby = scene.pair()
    with probing(owner.url, standby.url) as probers:
        took_s = takeover_s(standby, lambda: os.kill(owner.pid, signal.SIGSTOP))
        assert owner.process.ended() == 1
    told("frozen owner", takeover_s=round(took_s, 3))
    assert overlaps(probers) == []
    assert 1.5 < took_s < TTL_S - 1.0, "after the stall limit, before the lease would have run out"


def test_a_frozen_owner_without_a_standby_is_left_alone(scene: Stage) -> None:
    """Killing it would help nobody: when it goes on it owns again, as the same process."""
    owner = scene.router("a")
    pid = owner.pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3.5)
    assert owner.process.alive and psutil.pid_exists(pid)
    os.kill(pid, signal.SIGCONT)
    eventually(owner.ready, what="it owns again")
    assert owner.process.stop() == 0


def test_a_sleeping_host_is_no_stall(scene: Stage) -> None:
    """Warden and router stop together for longer than the stall limit, again and again: nobody is killed."""
    owner, standby = scene.pair()
    pid, both = owner.pid, (owner.process.pid, owner.pid)
    with probing(owner.url, standby.url) as probers:
        for _ in range(3):
            for one in both:
                os.kill(one, signal.SIGSTOP)
            time.sleep(2.4)
            for one in both:
                os.kill(one, signal.SIGCONT)
            time.sleep(0.6)
        assert owner.process.alive and psutil.pid_exists(pid)
    assert overlaps(probers) == []


# --- the warden's own death --------------------------------------------------------------------------


def test_a_router_whose_warden_is_killed_hands_over_and_ends(scene: Stage) -> None:
    owner, standby = scene.pair()
    router = psutil.Process(owner.pid)
    with probing(owner.url, standby.url) as probers, crowd([owner.url, standby.url]) as clients:
        time.sleep(0.5)
        took_s = takeover_s(standby, owner.process.kill)
        eventually(lambda: not router.is_running(), what="the router's end")
        time.sleep(0.5)
    told("warden killed", takeover_s=round(took_s, 3), failed=len(clients.failed))
    assert overlaps(probers) == []
    assert clients.failed == []
    assert took_s < PROMPT_S
    eventually(lambda: served(standby) == clients.served(), what="exact counters")


def test_a_router_has_one_parent_and_no_children(scene: Stage) -> None:
    router = scene.router("a")
    warden = psutil.Process(router.process.pid)
    assert [child.pid for child in warden.children(recursive=True)] == [router.pid]
    listening = {one.laddr.port for one in warden.net_connections() if one.status == psutil.CONN_LISTEN}
    assert listening == set(), "the warden holds no listening socket"
    megabytes = warden.memory_full_info().uss / 2**20
    told("warden", private_mb=round(megabytes, 1), cpu_s=sum(warden.cpu_times()[:2]))
    assert megabytes < 32


# --- nobody is left to speak for the owner -----------------------------------------------------------


def freed(router: Router) -> list[str]:
    return [row["freed"] for row in router.journal() if row["kind"] == "proof_of_death"]


def test_an_owner_that_died_with_its_warden_is_proved_dead_by_its_successor(scene: Stage) -> None:
    """As `systemctl kill -s KILL`, then a start under the same ID: nothing is waited for, no 15 s, no TTL."""
    owner = scene.router("a")
    before = epoch(owner)
    os.kill(owner.process.pid, signal.SIGSTOP)
    os.kill(owner.pid, signal.SIGKILL)
    owner.process.kill()
    eventually(lambda: not psutil.pid_exists(owner.pid), what="the router reaped")
    with scene.redis.client() as store:
        assert store.hget("narwhal:{simulated}:lease", "state") == "held", "nobody gave it back"
    again = scene.router("a")
    eventually(lambda: freed(again) == ["its lease", "its ID"], what="the journal tells the proof")
    assert epoch(again) > before


def test_without_a_warden_at_most_the_last_flush_is_lost(scene: Stage) -> None:
    """Counts of the last 50 ms and of a flush under way; with the warden the same kill loses none."""
    owner, standby = scene.pair("--no-warden")
    with crowd([owner.url], size=2, pause_s=0.0) as clients:
        eventually(lambda: clients.served() >= 20, what="answers")
        died = time.monotonic()
        owner.process.kill()
    eventually(standby.ready, what="takeover")
    answered, late = clients.served(), clients.served() - clients.served(until=died - 0.2)
    eventually(lambda: served(standby) >= answered - late, what="the counters")
    told("no warden", answered=answered, counted=served(standby), of_the_last_200_ms=late)
    assert answered - late <= served(standby) <= answered
