"""Commands that wait, against a router that says exactly what a test wants."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from narwhal.cli.asking import NoAnswer, Order
from narwhal.cli.lifecycle.routers import Routers
from narwhal.cli.lifecycle.verdict import Targets
from narwhal.cli.lifecycle.waiting import DRAIN, READMIT, Asking, Refused, until_drained, until_readmitted
from tests.support.scripted import Line, Script, answer, scripted_engine

Say = Callable[[str, str], tuple[int, dict[str, Any]]]


def document(state: str, *, ready: bool = False, failed: str = "", **more: Any) -> dict[str, Any]:
    checks = [{"name": failed, "outcome": "failed", "detail": ""}] if failed else []
    row = {
        "state": state, "draining": state != "active", "ready_to_stop": ready, "checks": checks,
        "resident": {"prefill": 0, "decode": 0}, "deadline_in_s": 9.0, "old_process_start": 1.0,
    }  # fmt: skip
    wave = {"id": None, "active": False, "readiness_withdrawn": False, "ready_to_stop": False}
    return {"engines": {"e0": row}, "wave": wave, "router": {"controls_fleet": True}, "error": "", **more}


def router(say: Say) -> Script:
    """`say(method, path)` is the answer to each request."""

    async def script(line: Line) -> None:
        while True:
            head, _ = await line.request()
            method, path, _ = head.split(" ", 2)
            status, body = (200, {"routers": []}) if path.endswith("/cluster") else say(method, path)
            await line.say(answer(status, json.dumps(body).encode()))

    return script


def asking(url: str, path: str, told: list[str]) -> Asking:
    return Asking(Routers(url), Targets(("e0",)), Order(path, {"engines": ["e0"]}), told.append)


async def test_what_could_be_lost_is_known_also_after_the_wait() -> None:
    def say(method: str, path: str) -> tuple[int, dict[str, Any]]:
        if method == "POST":
            return 200, document("draining", durable=False, durable_reason="disk full")
        return 200, document("drained", ready=True)

    async with scripted_engine(router(say)) as there:
        given = asking(there.spec.url, DRAIN, [])
        verdict, _ = await until_drained(given)
    assert (verdict.sentence, given.not_durable) == ("e0 may be stopped now", "disk full")


async def test_a_process_that_could_not_be_captured_is_asked_for_again() -> None:
    posts: list[str] = []
    told: list[str] = []

    def say(method: str, path: str) -> tuple[int, dict[str, Any]]:
        posts.extend([path] if method == "POST" else [])
        if method == "POST" and len(posts) == 1:
            return 503, document("draining") | {
                "error": "which process it is could not be read",
                "owner": None,
            }
        return 200, document("drained", ready=True)

    async with scripted_engine(router(say)) as there:
        verdict, _ = await until_drained(asking(there.spec.url, DRAIN, told))
    assert verdict.done and len(posts) == 2
    assert any("could not be read; asking again" in line for line in told)


async def test_a_drain_that_is_ordered_again_has_the_time_that_is_left_and_ends_when_it_passed() -> None:
    """Its process cannot be read: 503 each time. What a router that does not own shows is no verdict."""
    asked: list[float] = []
    told: list[str] = []

    async def script(line: Line) -> None:
        while True:
            head, body = await line.request()
            if " /narwhal/cluster" in head:
                await line.say(answer(200, b'{"routers": []}'))
                continue
            if not head.startswith("POST"):
                await line.say(answer(200, json.dumps(document("draining")).encode()))
                continue
            asked.append(json.loads(body)["deadline_s"])
            states = ["active", "draining", "deadline_exceeded"]
            said = document(states[len(asked) - 1]) | {"error": "it could not be read", "owner": None}
            await line.say(answer(503, json.dumps(said).encode()))

    async with scripted_engine(script) as there:
        order = Order(DRAIN, {"engines": ["e0"], "deadline_s": 30.0})
        given = Asking(Routers(there.spec.url), Targets(("e0",)), order, told.append)
        verdict, _ = await until_drained(given)
    assert not verdict.done
    assert verdict.sentence.startswith("the deadline passed: e0 stays out of placement")
    assert 30.0 >= asked[0] > asked[1] > asked[2] > 0


async def test_a_named_router_that_is_none_is_told_at_once() -> None:
    with pytest.raises(NoAnswer, match=r"^http://127\.0\.0\.1:1 gives no answer"):
        await until_drained(asking("http://127.0.0.1:1", DRAIN, []))
    with pytest.raises(NoAnswer, match=r"^http://127\.0\.0\.1:1 gives no answer"):
        await until_readmitted(asking("http://127.0.0.1:1", READMIT, []), within_s=600.0)


@pytest.mark.parametrize("check", ["model", "process", "kv_transfer"])
async def test_a_check_that_time_does_not_mend_is_a_verdict(check: str) -> None:
    def say(method: str, path: str) -> tuple[int, dict[str, Any]]:
        return 409, document("blocked", failed=check) | {"error": f"e0 stays out: the check {check} failed"}

    async with scripted_engine(router(say)) as there:
        with pytest.raises(Refused, match=f"the check {check} failed"):
            await until_readmitted(asking(there.spec.url, READMIT, []), within_s=600.0)


async def test_an_engine_that_does_not_come_up_in_time_is_a_verdict() -> None:
    def say(method: str, path: str) -> tuple[int, dict[str, Any]]:
        return 409, document("blocked", failed="health") | {"error": "e0 stays out: the check health failed"}

    async with scripted_engine(router(say)) as there:
        with pytest.raises(Refused, match="the check health failed"):
            await until_readmitted(asking(there.spec.url, READMIT, []), within_s=0.1)


async def test_whoever_lost_the_answer_and_asks_again_learns_that_it_was_done() -> None:
    """Not so whoever asked once only: for him there was nothing to readmit."""
    posts: list[str] = []

    def say(method: str, path: str) -> tuple[int, dict[str, Any]]:
        posts.extend([path] if method == "POST" else [])
        if method == "POST" and len(posts) == 1:
            return 503, document("validating") | {"error": "this router lost control", "owner": None}
        return 409 if method == "POST" else 200, document("active", error="e0 is not drained")

    async with scripted_engine(router(say)) as there:
        verdict, _ = await until_readmitted(asking(there.spec.url, READMIT, []), within_s=600.0)
        assert verdict.done
        with pytest.raises(Refused, match="e0 is not drained"):
            await until_readmitted(asking(there.spec.url, READMIT, []), within_s=600.0)
