"""One entry that cannot be read costs that entry, not the roster; what is read steers no terminal."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import asdict

import pytest

from narwhal.model.plain_text import MOST_CHARS
from narwhal.model.store_call import RouterEntry
from narwhal.store.keys import Keys
from narwhal.store.memory import MemoryRunner, MemoryServer
from narwhal.store.registry import ScriptRegistry

ODD = "\x1b[31mred\n" + "x" * 10_000
BAD = {
    "a list of nothing": {"drift": "5"},
    "no list": {"drift": "null"},
    "no JSON": {"drift": "["},
    "a word for a number": {"epoch": "seven"},
    "no role": {"role": None},
}


def roster(changes: dict[str, str | None]) -> list[RouterEntry]:
    """What is seen of `a`, `b` and `c` when `b`'s entry has these fields changed; twice, as a router asks."""
    server = MemoryServer(lambda: 1_700_000_000.0)

    async def scenario() -> list[RouterEntry]:
        registry = ScriptRegistry(MemoryRunner(server), "c")
        for name in "abc":
            await registry.announce(RouterEntry(name, "r", "standby", f"http://{name}"), timeout_s=1.0)
        _, fields = server.data.entries[Keys("c").router("b")]
        for name, value in changes.items():
            fields.pop(name) if value is None else fields.update({name: value})
        seen: list[RouterEntry] = []
        for _ in range(2):
            seen += await registry.routers(timeout_s=1.0)
        return seen

    return asyncio.run(scenario())


@pytest.mark.parametrize("changes", BAD.values(), ids=BAD)
def test_an_unreadable_entry_is_left_out_and_told_once(
    changes: dict[str, str | None], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "narwhal.store"):
        assert [one.router_id for one in roster(changes)] == ["a", "c", "a", "c"]
    (line,) = caplog.messages
    assert "router:b cannot be read" in line


def test_what_an_entry_tells_is_kept_printable_and_short() -> None:
    texts = dict.fromkeys(("run", "role", "url", "control_url", "version", "config_digest", "host"), ODD)
    lists = {"drift": json.dumps([ODD] * 1000), "section_digests": json.dumps({ODD: ODD})}
    seen = {one.router_id: one for one in roster({**texts, **lists, "contract_digest": ODD, "voters": ODD})}
    told = json.dumps(asdict(seen["b"]), ensure_ascii=False)
    assert told.isprintable()
    assert "[31mred" in told
    assert len(told) < 200_000
    assert seen["a"].url == "http://a"


def test_a_router_whose_id_is_none_is_shown_as_one_that_is_none() -> None:
    server = MemoryServer(lambda: 1_700_000_000.0)

    async def scenario() -> list[str]:
        registry = ScriptRegistry(MemoryRunner(server), "c")
        await registry.announce(RouterEntry(ODD, "r", "standby", "http://odd"), timeout_s=1.0)
        return [one.router_id for one in await registry.routers(timeout_s=1.0)]

    (router_id,) = asyncio.run(scenario())
    assert router_id.startswith("\\x1b[31mred\\nx") and len(router_id) <= MOST_CHARS
