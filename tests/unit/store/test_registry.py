"""One entry that cannot be read costs that entry, not the roster."""

from __future__ import annotations

import asyncio
import logging

import pytest

from narwhal.model.store_call import RouterEntry
from narwhal.store.keys import Keys
from narwhal.store.memory import MemoryRunner, MemoryServer
from narwhal.store.registry import ScriptRegistry

BAD = {
    "a list of nothing": {"drift": "5"},
    "no list": {"drift": "null"},
    "no JSON": {"drift": "["},
    "a word for a number": {"epoch": "seven"},
    "no role": {"role": None},
}


def roster(changes: dict[str, str | None]) -> list[str]:
    """Who is seen of `a`, `b` and `c` when `b`'s entry has these fields changed; twice, as a router asks."""
    server = MemoryServer(lambda: 1_700_000_000.0)

    async def scenario() -> list[str]:
        registry = ScriptRegistry(MemoryRunner(server), "c")
        for name in "abc":
            await registry.announce(RouterEntry(name, "r", "standby", f"http://{name}"), timeout_s=1.0)
        _, fields = server.data.entries[Keys("c").router("b")]
        for name, value in changes.items():
            fields.pop(name) if value is None else fields.update({name: value})
        seen: list[str] = []
        for _ in range(2):
            seen += [one.router_id for one in await registry.routers(timeout_s=1.0)]
        return seen

    return asyncio.run(scenario())


@pytest.mark.parametrize("changes", BAD.values(), ids=BAD)
def test_an_unreadable_entry_is_left_out_and_told_once(
    changes: dict[str, str | None], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "narwhal.store"):
        assert roster(changes) == ["a", "c", "a", "c"]
    (line,) = caplog.messages
    assert "router:b cannot be read" in line
