"""`narwhal drain`, `narwhal readmit` and `narwhal lifecycle` against a pair of real routers."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.engines import EngineProcess, RemoteEngine, engine_process
from tests.support.processes import ROOT, Process, eventually, python
from tests.support.redis import RedisServer, on, running
from tests.support.router import Router, fleet_document, router_process

KEY = "opensesame-opensesame"
ENV = {"THE_KEY": KEY, "WRONG_KEY": "sesameopen-sesameopen"}


@dataclass
class Scene:
    """Router `a` owned first, `b` stands by. Engines e0, e1 (prefill), e2, e3 (decode)."""

    engines: EngineProcess
    routers: tuple[Router, Router]

    @property
    def owner(self) -> Router:
        return next(one for one in self.routers if one.process.alive and one.ready())

    @property
    def standby(self) -> Router:
        return next(one for one in self.routers if one is not self.owner)

    @property
    def last(self) -> RemoteEngine:
        return self.engines.engines[-1]

    def row(self, iid: str = "e3") -> dict[str, Any]:
        row: dict[str, Any] = self.owner.get("/narwhal/lifecycle")["engines"][iid]
        return row


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("lifecycle-commands")
    with ExitStack() as stack:
        redis: RedisServer = stack.enter_context(running(on("redis-server"), folder))
        engines = stack.enter_context(engine_process(4, "--prefill", "0", "--interval", "0.002"))
        fleet = fleet_document(engines.engines, controller={"monitor_interval_s": 0.2})
        store = ("--redis-url", f"redis://127.0.0.1:{redis.port}", "--control-key-env", "THE_KEY")

        def router(name: str, *more: str) -> Router:
            words = (*store, "--router-id", name, *more)
            return stack.enter_context(router_process(folder / name, fleet, *words, env=ENV))

        pair = (router("a"), router("b", "--standby"))
        eventually(lambda: pair[1].get("/ready").get("ready_to_take") is True, what="standby ready to take")
        eventually(lambda: len(pair[0].get("/narwhal/cluster")["routers"]) == 2, what="both are known")
        yield Scene(engines, pair)


def command(router: Router, *words: str, key: str = "THE_KEY") -> list[str]:
    named = ("--control-key-env", key) if key else ()
    return python("narwhal.cli", *words, "--router", router.url, *named)


def narwhal(router: Router, *words: str, key: str = "THE_KEY") -> subprocess.CompletedProcess[str]:
    process = Process(command(router, *words, key=key), env=ENV)
    status = process.ended()
    assert KEY not in process.output
    return subprocess.CompletedProcess([], status, process.output, "")


def for_programs(router: Router, *words: str) -> subprocess.CompletedProcess[str]:
    """Standard output and standard error apart."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **ENV}
    words = (*words, "--json")
    return subprocess.run(
        command(router, *words), capture_output=True, text=True, timeout=60, check=False, env=env
    )


@contextmanager
def a_stream_on(scene: Scene, iid: str, tokens: int) -> Iterator[None]:
    """A request whose decode leg is resident on `iid` until it is left."""
    router = scene.owner
    host, port = router.url.removeprefix("http://").split(":")
    body = json.dumps({"model": "simulated", "prompt": "hello", "max_tokens": tokens, "stream": True})
    streams = []
    while not router.state()["resident"][iid]["decode"]:
        connection = http.client.HTTPConnection(host, int(port), timeout=30.0)
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200
        streams.append(connection)
        answer.read(1)
    yield
    for stream in streams:
        stream.close()


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("drain",), "name the engines, or the whole fleet with --wave: one of the two"),
        (("readmit", "e3", "--wave"), "name the engines, or the whole fleet with --wave: one of the two"),
        (("drain", "e3", "--deadline", "0"), "must be finite seconds above 0"),
        (("drain", "e3", "--router", "e3"), "--router must be a URL that begins with http"),
        (
            ("drain", "e3", "--control-key-env", "NOT_SET"),
            "--control-key-env names NOT_SET, which is not set",
        ),
    ],
)
def test_wrong_usage_is_status_2_in_one_sentence(words: tuple[str, ...], said: str) -> None:
    process = Process(python("narwhal.cli", *words))
    assert process.ended() == 2
    assert said in process.output


def test_router_and_key_may_be_named_by_the_environment(scene: Scene) -> None:
    shell = {**ENV, "NARWHAL_ROUTER": scene.standby.url, "NARWHAL_CONTROL_KEY_ENV": "THE_KEY"}
    done = Process(python("narwhal.cli", "drain", "e9"), env=shell)
    assert done.ended() == 1
    assert done.output.startswith("narwhal drain: e9 is no engine of this fleet")
    wrong = Process(python("narwhal.cli", "lifecycle"), env={"NARWHAL_ROUTER": "e3"})
    assert (wrong.ended(), "NARWHAL_ROUTER must be a URL" in wrong.output) == (2, True)


def test_a_refusal_is_the_routers_own_sentence_and_status_1(scene: Scene) -> None:
    for key in ("", "WRONG_KEY"):
        done = narwhal(scene.owner, "drain", "e3", key=key)
        assert done.returncode == 1
        assert done.stdout == (
            "narwhal drain: the control key is wrong or missing: name its variable with --control-key-env "
            "(and its control listener with --router, where it has one)"
        )
    unknown = narwhal(scene.owner, "drain", "e9")
    assert unknown.returncode == 1
    assert unknown.stdout.startswith("narwhal drain: e9 is no engine of this fleet; its engines are e0, e1")
    idle = narwhal(scene.owner, "readmit", "e3", "--wait")
    assert idle.returncode == 1
    assert "e3 is not drained" in idle.stdout
    away = Process(python("narwhal.cli", "drain", "e3", "--router", "http://127.0.0.1:1"))
    assert (away.ended(), len(away.lines)) == (1, 1)
    assert "gives no answer" in away.output


# --- an individual restart ---------------------------------------------------------------------------


def test_a_drain_follows_the_owner_waits_and_ends_when_the_engine_may_be_stopped(scene: Scene) -> None:
    with a_stream_on(scene, "e3", tokens=20_000):
        first = narwhal(scene.standby, "drain", "e3")
        assert first.returncode == 0
        assert first.stdout.startswith("out of placement: e3 draining, resident decode 1")
        waiting = Process(command(scene.standby, "drain", "e3", "--wait"), env=ENV)
        waiting.wait_for(lambda lines: any("resident decode 1" in line for line in lines))
        left = Process(command(scene.owner, "drain", "e3", "--wait"), env=ENV)
        left.wait_for(lambda lines: any("resident decode 1" in line for line in lines))
        left.send(signal.SIGINT)
        assert (left.ended(), "what was ordered goes on" in left.output) == (130, True)
        assert waiting.alive
    assert waiting.ended() == 0
    assert waiting.lines[-1] == "e3 may be stopped now"
    assert scene.row()["ready_to_stop"] is True


def test_what_was_not_restarted_is_blocked_and_a_readmit_waits_for_what_comes_up(scene: Scene) -> None:
    narwhal(scene.owner, "drain", "e3", "--wait")
    refused = narwhal(scene.owner, "readmit", "e3", "--wait")
    assert refused.returncode == 1
    assert "e3 stays out: the check process failed (its process is not newer" in refused.stdout
    shown = narwhal(scene.standby, "lifecycle")
    assert shown.returncode == 0
    assert "told by the owner" in shown.stdout
    assert "\ne3 stays out: the check process failed" in shown.stdout
    scene.last.order("restart", down_s=3.0)
    back = narwhal(scene.standby, "readmit", "e3", "--wait")
    assert back.returncode == 0, back.stdout
    assert "the check health failed" in back.stdout, "it was asked while it was down"
    assert back.stdout.endswith("e3 is in service again: e3 passed 6 checks, attestation skipped")
    assert scene.row()["accepts_new"] is True


def test_for_programs_there_is_the_document_whether_done_or_refused(scene: Scene) -> None:
    done = for_programs(scene.owner, "drain", "e3", "--wait")
    document = json.loads(done.stdout)
    assert (done.returncode, document["schema"]) == (0, "narwhal.lifecycle")
    assert document["engines"]["e3"]["ready_to_stop"] is True
    refused = for_programs(scene.owner, "readmit", "e3")
    document = json.loads(refused.stdout)
    assert refused.returncode == 1
    assert document["engines"]["e3"]["state"] == "blocked"
    assert refused.stderr == f"narwhal readmit: {document['error']}\n"
    looked = narwhal(scene.standby, "lifecycle", "--json", key="")
    assert json.loads(looked.stdout)["engines"]["e3"]["state"] == "blocked"
    scene.last.order("restart")
    assert narwhal(scene.owner, "readmit", "e3", "--wait").returncode == 0


def test_a_deadline_that_passes_is_status_1_and_says_what_is_left(scene: Scene) -> None:
    with a_stream_on(scene, "e3", tokens=20_000):
        late = narwhal(scene.owner, "drain", "e3", "--deadline", "1", "--wait")
        assert late.returncode == 1
        assert "the deadline passed: e3 stays out of placement and its work goes on" in late.stdout
    assert narwhal(scene.owner, "drain", "e3", "--wait").returncode == 0
    scene.last.order("restart")
    assert narwhal(scene.owner, "readmit", "e3", "--wait").returncode == 0


def test_watch_tells_every_change_until_ctrl_c(scene: Scene) -> None:
    watching = Process(command(scene.standby, "lifecycle", "--watch", "--json", "--every", "0.1", key=""))
    watching.wait_for(lambda lines: len(lines) >= 3)
    watching.send(signal.SIGINT)
    assert watching.ended() == 0
    assert {json.loads(line)["router"]["controls_fleet"] for line in watching.lines} == {True}


# --- a takeover while it waits -----------------------------------------------------------------------


def test_a_drain_that_is_waited_for_survives_the_death_of_its_owner(scene: Scene) -> None:
    """Last: it ends router `a`, which is the only one that the command was told of."""
    killed, other = scene.owner, scene.standby
    with a_stream_on(scene, "e3", tokens=20_000):
        waiting = Process(command(killed, "drain", "e3", "--wait"), env=ENV)
        waiting.wait_for(lambda lines: any("resident decode 1" in line for line in lines))
        os.kill(killed.pid, signal.SIGKILL)
        killed.process.ended()
    eventually(other.ready, what="the standby owns")
    assert waiting.ended() == 0, waiting.output
    assert waiting.lines[-1] == "e3 may be stopped now"
    assert other.get("/narwhal/lifecycle")["engines"]["e3"]["state"] == "drained"
    shown = Process(command(other, "lifecycle", key=""))
    assert shown.ended() == 0
    assert "e3" in shown.output and "drained" in shown.output
