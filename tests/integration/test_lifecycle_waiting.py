"""Commands that wait, against a router that says exactly what a test wants."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from typing import Any

import pytest

from narwhal.cli.asking import MOST_BYTES, CommandFailed, NoAnswer, Order
from narwhal.cli.lifecycle.routers import Routers
from narwhal.cli.lifecycle.verdict import Targets
from narwhal.cli.lifecycle.waiting import DRAIN, READMIT, Asking, Refused, until_drained, until_readmitted
from narwhal.cli.main import main
from tests.support.lifecycle import cluster_document, lifecycle_document, row
from tests.support.scripted import Line, Script, answer, scripted_engine

Say = Callable[[str, str], tuple[int, dict[str, Any]]]


def document(state: str, *, ready: bool = False, failed: str = "", **more: Any) -> dict[str, Any]:
    checks = [{"name": failed, "outcome": "failed", "detail": ""}] if failed else []
    told: dict[str, Any] = lifecycle_document(e0=row(state, ready_to_stop=ready, checks=checks))
    return told | more


def router(say: Say) -> Script:
    """`say(method, path)` is the answer to each request."""

    async def script(line: Line) -> None:
        while True:
            head, _ = await line.request()
            method, path, _ = head.split(" ", 2)
            status, body = (200, cluster_document()) if path.endswith("/cluster") else say(method, path)
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
                await line.say(answer(200, json.dumps(cluster_document()).encode()))
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


# --- whose document does not list the engine -----------------------------------------------------------


@pytest.mark.parametrize("path", [DRAIN, READMIT])
async def test_an_owner_without_the_engine_is_no_proof_of_anything(path: str) -> None:
    """The answer is a 200, or a takeover came to a router whose fleet file differs."""

    def say(method: str, path: str) -> tuple[int, dict[str, Any]]:
        return 200, lifecycle_document(e1=row("active"))

    async with scripted_engine(router(say)) as there:
        for ended in (until_drained, partial(until_readmitted, within_s=600.0), Asking.once):
            with pytest.raises(
                Refused, match=f"{there.spec.url}, does not have e0 in its fleet file"
            ) as told:
                await ended(asking(there.spec.url, path, []))
            assert told.value.document is not None


async def test_a_refusal_by_an_owner_without_the_engine_says_what_it_keeps_of_it() -> None:
    def say(method: str, path: str) -> tuple[int, dict[str, Any]]:
        kept = {"e0": {"state": "draining", "ejected": False, "held": False}}
        return 409, lifecycle_document(e1=row("active")) | {"carried": kept, "error": "e0 is no engine here"}

    async with scripted_engine(router(say)) as there:
        with pytest.raises(Refused) as told:
            await asking(there.spec.url, DRAIN, []).once()
    kept = "e0 is not in this router's fleet file, and stays draining"
    assert str(told.value).endswith(f"e0 is no engine here; {kept}")


async def test_a_takeover_to_a_router_without_the_engine_ends_the_wait() -> None:
    told: list[str] = []

    def say(method: str, path: str) -> tuple[int, dict[str, Any]]:
        return 200, document("draining") if method == "POST" else lifecycle_document(e1=row("active"))

    async with scripted_engine(router(say)) as there:
        with pytest.raises(Refused, match="does not have e0 in its fleet file"):
            await until_drained(asking(there.spec.url, DRAIN, told))
    assert told[-1] == "e0 not in the fleet file of the router that owns"


async def test_no_member_of_a_wave_may_vanish() -> None:
    done = {"id": "wave-1", "active": True, "readiness_withdrawn": True, "ready_to_stop": True}
    e0 = row("drained", ready_to_stop=True)

    def say(method: str, path: str) -> tuple[int, dict[str, Any]]:
        if method == "POST":
            return 200, lifecycle_document(e0=row("draining"), e1=row("draining"))
        return 200, lifecycle_document(e0=e0) | {"wave": done}

    async with scripted_engine(router(say)) as there:
        order = Order(DRAIN, {"wave": True})
        with pytest.raises(Refused, match="does not have e1 in its fleet file"):
            await until_drained(Asking(Routers(there.spec.url), Targets((), wave=True), order, [].append))


# --- deadlines ---------------------------------------------------------------------------------------


async def test_an_order_that_is_repeated_moves_no_deadline() -> None:
    """The router keeps the later one of two. Its engine is dead: 503 until the deadline."""
    deadlines: list[float] = []
    told: list[str] = []

    async def script(line: Line) -> None:
        while True:
            head, body = await line.request()
            now = time.monotonic()
            if head.startswith("POST"):
                deadlines.append(now + json.loads(body)["deadline_s"])
            late = bool(deadlines) and now > deadlines[0]
            said = document("deadline_exceeded" if late else "draining" if deadlines else "active")
            if head.startswith("POST"):
                said |= {"error": "it could not be read", "owner": None}
            if " /narwhal/cluster" in head:
                said = cluster_document()
            await line.say(answer(503 if head.startswith("POST") else 200, json.dumps(said).encode()))

    async with scripted_engine(script) as there:
        order = Order(DRAIN, {"engines": ["e0"], "deadline_s": 2.5})
        given = Asking(Routers(there.spec.url), Targets(("e0",)), order, told.append)
        verdict, _ = await until_drained(given)
    assert not verdict.done and verdict.sentence.startswith("the deadline passed: e0 stays out of placement")
    assert len(deadlines) > 1 and max(deadlines) == deadlines[0]


# --- what is no router ---------------------------------------------------------------------------------

OTHERS = {
    "a page": (200, b"<html>"),
    "nothing": (200, b""),
    "a list": (200, b"[]"),
    "another document": (200, b'{"schema": "narwhal.lifecycle"}'),
    "an odd row": (200, json.dumps(lifecycle_document(e0=5)).encode()),
    "a row without its state": (200, json.dumps(lifecycle_document(e0={"accepts_new": True})).encode()),
    "a deep one": (200, b"[" * 200_000),
    "a number that is none": (200, b'{"a": ' + b"9" * 5000 + b"}"),
    "a redirect": (307, b""),
    "a proxy's page": (502, b"<html>bad gateway"),
    "a proxy's own JSON": (500, b'{"error": {"message": "boom"}}'),
}


@pytest.mark.parametrize("other", OTHERS)
async def test_what_is_no_document_of_a_router_is_one_sentence_and_status_1(other: str) -> None:
    async def script(line: Line) -> None:
        while True:
            await line.request()
            await line.say(answer(*OTHERS[other]))

    async with scripted_engine(script) as there:
        for words in (
            "drain e0",
            "readmit e0",
            "drain e0 --wait",
            "lifecycle",
            "cluster status",
            "cluster yield",
        ):
            command = [*words.split(), "--router", there.spec.url]
            status, stdout, stderr = await asyncio.to_thread(called, command)
            assert (status, stdout, stderr.count("\n")) == (1, "", 1), stderr
            assert "answered" in stderr or "boom" in stderr, stderr


def called(command: list[str]) -> tuple[int, str, str]:
    with redirect_stdout(io.StringIO()) as stdout, redirect_stderr(io.StringIO()) as stderr:
        status = main(command)
    return status, stdout.getvalue(), stderr.getvalue()


async def test_an_answer_without_end_is_left() -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.say(answer(200, b"x" * (MOST_BYTES + 1)))

    async with scripted_engine(script) as there:
        with pytest.raises(CommandFailed, match="answered over 16777216 bytes"):
            await Routers(there.spec.url).introduce()
