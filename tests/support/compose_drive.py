"""Runs the services of docker-compose.yml and clean switches under load: `... compose_drive FOLDER`.

Prints the map it replaced by and one JSON line of what the clients saw. The load is open: so many
requests a second whether or not earlier ones were answered.
"""

from __future__ import annotations

import asyncio
import collections
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.compose import Compose

RATE = 200
SWITCHES = 10
OUTSTANDING = 100
BODY_BYTES = 20_000
PORTS = {"router-a": 8001, "router-b": 8002}
FRONT = 8000


async def exchange(port: int, request: bytes) -> tuple[int, bytes]:
    """One request on a connection of its own; status and the rest of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head.startswith(b"HTTP/1.1 ") else 0), body


def completion(number: int) -> bytes:
    """A request of BODY_BYTES, every second one streamed."""
    fields = {"model": "simulated", "max_tokens": 2, "stream": bool(number % 2), "prompt": ""}
    fields["prompt"] = f"{number} ".ljust(BODY_BYTES - len(json.dumps(fields)), "w")
    body = json.dumps(fields).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: narwhal\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + body


async def ask(seen: collections.Counter[str], number: int) -> None:
    """Counts one request as `whole` or by what was wrong with it."""
    try:
        status, body = await asyncio.wait_for(exchange(FRONT, completion(number)), 60)
    except (OSError, TimeoutError) as error:
        seen[f"{type(error).__name__}: {error}"] += 1
        return
    streamed, whole = number % 2, b'"finish_reason":"length"' in body.replace(b'": "', b'":"')
    if status == 200 and whole and (not streamed or b"data: [DONE]" in body):
        seen["whole"] += 1
    else:
        seen[f"{status} {body[:300]!r}"] += 1


async def load(seen: collections.Counter[str], stop: asyncio.Event) -> int:
    """Requests at RATE until told to stop, then until the last answer. How many.

    A machine that is too slow for the rate gets a lower one: at most OUTSTANDING wait at a time.
    """
    seats = asyncio.Semaphore(OUTSTANDING)
    asked, due = 0, time.monotonic()

    async def one(number: int) -> None:
        async with seats:
            await ask(seen, number)

    async with asyncio.TaskGroup() as group:
        while not stop.is_set():
            async with seats:  # a seat is free now
                group.create_task(one(asked))
            asked += 1
            due = max(due + 1 / RATE, time.monotonic() - 1.0)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
    return asked


async def is_ready(name: str) -> bool:
    request = b"GET /ready HTTP/1.1\r\nHost: narwhal\r\nConnection: close\r\n\r\n"
    try:
        status, _ = await exchange(PORTS[name], request)
    except OSError:
        return False
    return status == 200


async def owner(*names: str) -> str:
    for _ in range(3000):
        for name in names:
            if await is_ready(name):
                return name
        await asyncio.sleep(0.01)
    raise AssertionError(f"none of {names} became ready")


async def drive(compose: Compose) -> dict[str, Any]:
    seen: collections.Counter[str] = collections.Counter()
    stop, takeovers = asyncio.Event(), []
    holder = await owner(*PORTS)
    await asyncio.sleep(1.0)
    clients = asyncio.create_task(load(seen, stop))
    for _ in range(SWITCHES):
        await asyncio.sleep(1.0)
        other = next(name for name in PORTS if name != holder)
        ending, began = compose.terminate(holder), time.monotonic()
        assert await owner(other) == other
        takeovers.append(round(time.monotonic() - began, 3))
        assert await asyncio.to_thread(ending.wait, 40) == 0, f"{holder} ended with {ending.returncode}"
        compose.start(holder)
        await asyncio.to_thread(compose.wait_healthy, holder)
        print(f"switch {len(takeovers)}: {takeovers[-1]} s, {sum(seen.values())} answers", flush=True)
        holder = other
    await asyncio.sleep(1.0)
    stop.set()
    return {"asked": await clients, "seen": dict(seen), "takeovers": takeovers}


def be_patient(folder: Path) -> None:
    """A loaded machine is no broken engine: what is tried here is the switch."""
    for path in folder.glob("router-*/fleet.json"):
        fleet = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**fleet, "engine": {"first_token_timeout_s": 30.0}}), encoding="utf-8")


def failed_rows(folder: Path) -> Iterator[str]:
    """What the routers' journals say of requests that were not served: the reason of a failed run."""
    for journal in sorted(folder.glob("router-*/narwhal/journal.jsonl")):
        for line in journal.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["kind"] == "request" and row["terminal"] != "served":
                told = (
                    row[name] for name in ("arrived", "duration_s", "terminal", "reason", "attempt_failures")
                )
                yield f"{journal.parent.parent.name}: {json.dumps(list(told))}"
            elif row["kind"] in ("hold", "ejection", "ownership"):
                yield f"{journal.parent.parent.name}: {line}"


def main(folder: str) -> None:
    compose = Compose(Path(folder))
    compose.lay_out()
    be_patient(Path(folder))
    try:
        for service in compose.in_order():
            print(f"{service.name}: {json.dumps(compose.map_of(service))}")
            compose.start(service.name)
            compose.wait_healthy(service.name)
        found = asyncio.run(drive(compose))
        if found["seen"].keys() != {"whole"}:
            print("\n".join(failed_rows(Path(folder))))
        print(json.dumps(found))
    finally:
        compose.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
