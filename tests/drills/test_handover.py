"""Drills with real processes: the lease is handed over on order and by claim, and kept by pledges."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.bookkeepers import crowd
from tests.support.engines import EngineProcess, engine_process
from tests.support.prober import overlaps, probing
from tests.support.processes import Process, eventually, python
from tests.support.redis import RedisServer, on, running
from tests.support.router import Router, fleet_document, router_process

KEY = "an operator's key"
OUTAGE_S = 11.0
QUICK = {"monitor_interval_s": 0.2, "monitor_failure_limit": 2}


@dataclass
class Pair:
    """An owner and its standby, both warm."""

    redis: RedisServer
    owner: Router
    standby: Router
    engines: EngineProcess


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        redis = stack.enter_context(running(on("redis-6.2"), tmp_path))
        engines = stack.enter_context(engine_process(2, "--prefill", "0", "--interval", "0.001"))
        options = ("--redis-url", f"redis://127.0.0.1:{redis.port}", "--control-key-env", "DRILL_KEY")

        def router(name: str, *more: str) -> Router:
            process = router_process(
                tmp_path / name,
                fleet_document(engines.engines, controller=QUICK),
                *options, "--router-id", name, "--failsafe", "a,b", *more,
                env={"DRILL_KEY": KEY},
            )  # fmt: skip
            return stack.enter_context(process)

        owner, standby = router("a"), router("b", "--standby")
        eventually(lambda: standby.get("/ready").get("ready_to_take") is True, what="standby ready to take")
        eventually(lambda: len(owner.get("/narwhal/cluster")["routers"]) == 2, what="both are known")
        yield Pair(redis, owner, standby, engines)


def order(router: Router, body: dict[str, Any], *, key: str = KEY) -> tuple[int, dict[str, Any]]:
    """A yield: status and document."""
    request = urllib.request.Request(
        f"{router.url}/narwhal/lifecycle/yield",
        json.dumps(body).encode(),
        {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def ready_to_take(router: Router, other: str) -> bool:
    """As `router` knows it: what the other one told last, a moment behind the other's own `/ready`."""
    row = row_of(router, other)
    return row.get("ready_to_take") is True and row["role"] == "standby"


def drift(router: Router, other: str) -> Any:
    """What keeps the other one from taking over, as `router` knows it."""
    return row_of(router, other).get("drift")


def row_of(router: Router, other: str) -> dict[str, Any]:
    rows = router.get("/narwhal/cluster")["routers"]
    return next((row for row in rows if row["router_id"] == other), {})


def refuses_another_model(pair: Pair) -> None:
    """A router of another fleet with the same engines, started under the same cluster name."""
    folder = pair.owner.folder.with_name("stranger")
    folder.mkdir()
    fleet = {**fleet_document(pair.engines.engines, controller=QUICK), "model": "another-model"}
    (folder / "fleet.json").write_text(json.dumps(fleet))
    url = f"redis://127.0.0.1:{pair.redis.port}"
    store = ("--redis-url", url, "--cluster", "simulated", "--router-id", "c")
    files = ("--fleet", str(folder / "fleet.json"), "--state-path", str(folder / "state.json"))
    process = Process(python("narwhal.cli.serve", *files, "--port", "0", *store))
    try:
        assert process.ended() == 3, process.output
    finally:
        process.kill()
    assert 'this fleet file is for "another-model": pass --cluster' in process.output


def served(router: Router) -> int:
    document: dict[str, Any] = router.get("/narwhal/handoff")
    return int(document["counters"]["served"])


def test_a_yield_under_load_and_back_fails_no_request(pair: Pair) -> None:
    """Orders that cannot be are refused first; then the lease goes over and back, and counts are exact."""
    owner, standby = pair.owner, pair.standby
    with probing(owner.url, standby.url) as probers, crowd([owner.url, standby.url]) as clients:
        time.sleep(1.0)
        assert order(owner, {"to": None}, key="")[0] == 401
        assert order(owner, {"to": 7})[0] == 400
        status, document = order(standby, {"to": "a"})
        assert (status, document["owner"]["router_id"]) == (503, "a")
        status, document = order(owner, {"to": "nobody"})
        assert (status, document["error"]) == (409, "no router nobody is known in this cluster")
        refuses_another_model(pair)
        assert owner.ready(), "nothing was closed"
        status, document = order(owner, {"to": "b"})
        assert status == 200
        assert document["lease"]["router_id"] in ("", "b"), "given back, and perhaps taken already"
        eventually(standby.ready, what="the standby owns", within_s=3.0)
        eventually(lambda: ready_to_take(standby, "a"), what="back as a standby, and known as one")
        status, document = order(standby, {"to": None})
        assert status == 200
        assert document["lease"]["router_id"] in ("", "a"), "given back, and perhaps taken already"
        eventually(owner.ready, what="the first owns again", within_s=3.0)
        time.sleep(0.5)
    assert overlaps(probers) == []
    assert clients.failed == []
    assert all(prober.yeses for prober in probers)
    eventually(lambda: served(owner) == clients.served(), what="exact counters")


def test_an_owner_that_cannot_write_its_checkpoint_yields_and_gets_the_lease_back_when_it_can(
    pair: Pair,
) -> None:
    """Its state directory has gone: as on a full disk no new file can be written. The lease is renewed.
    Orders to hand it back are refused before anything closes, until the directory is mended."""
    first, second, gone = pair.owner, pair.standby, pair.owner.folder.with_name("gone")
    with probing(first.url, second.url) as probers, crowd([first.url, second.url]) as clients:
        time.sleep(0.5)
        first.folder.rename(gone)
        eventually(second.ready, what="yield by claim", within_s=3.0)
        eventually(lambda: first.get("/ready")["reason"] == "standby", what="back as a standby")
        broken = "its checkpoint cannot be written: No such file or directory"
        eventually(
            lambda: drift(second, "a") == [broken], what="the owner knows of the broken standby, and why"
        )
        told = first.get("/ready")
        assert (told["ready_to_take"], told["drift"]) == (False, [broken])
        for to, error in (
            (None, "no standby is ready to take over"),
            ("a", f"router a is not ready to take over: {broken}"),
        ):
            status, document = order(second, {"to": to})
            assert (status, document["error"]) == (409, error)
        assert second.ready(), "and keeps the lease"
        gone.rename(first.folder)
        eventually(lambda: ready_to_take(second, "a"), what="mended, and known for it")
        assert order(second, {"to": "a"})[0] == 200
        eventually(first.ready, what="the first owns again", within_s=3.0)
    assert overlaps(probers) == []
    assert clients.failed == []
    journal = [json.loads(line) for line in (first.folder / "journal.jsonl").read_text().splitlines()]
    (told,) = [row for row in journal if "yield_by_claim" in row.values()]
    assert told["to"] == "b"
    assert told["reason"].startswith("monitoring degraded: handoff ")
    warned = [line for line in first.process.lines if "checkpoint" in line and "WARNING" in line]
    assert len(warned) <= 2, "one line when it fails, one when it is written again"


def test_with_fail_safe_an_outage_of_the_store_fails_no_request(pair: Pair) -> None:
    """Redis is away for far longer than a lease lasts, and comes back empty: same owner, nobody noticed."""
    owner, standby = pair.owner, pair.standby
    epoch = owner.get("/ready")["epoch"]
    with probing(owner.url, standby.url) as probers, crowd([owner.url]) as clients:
        time.sleep(1.5)
        pair.redis.stop()
        time.sleep(OUTAGE_S)
        assert owner.ready()
        pair.redis.start()
        time.sleep(3.0)
    assert overlaps(probers) == []
    assert (clients.failed, clients.refused) == ([], 0)
    assert owner.ready()
    assert owner.get("/ready")["epoch"] == epoch
    assert probers[1].yeses == []
    told = [line for line in owner.process.lines if "fail-safe" in line]
    assert any("goes on by the pledges of b" in line for line in told)
    assert len(told) <= 3, "refused, pledged, and once more when b hears the store again"
    eventually(lambda: served(owner) == clients.served(), what="exact counters")
