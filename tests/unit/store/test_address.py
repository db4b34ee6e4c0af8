"""Names: resolved beside the call, good addresses kept, the next one tried after a failure."""

from __future__ import annotations

import asyncio

import pytest

from narwhal.store.address import Addresses


class Names:
    """A name service that the test fills; `asked` counts."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = 0

    async def resolve(self, host, port):
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def settled(addresses):
    for _ in range(5):
        await asyncio.sleep(0)
    return (await addresses.current())[0]


def test_the_first_call_waits_for_the_name_and_later_ones_do_not_ask():
    async def scenario():
        names = Names(("10.0.0.1", "10.0.0.2"))
        addresses = Addresses("redis", 6379, resolve=names.resolve)
        found = [(await addresses.current())[0] for _ in range(3)]
        return found, names.asked

    assert asyncio.run(scenario()) == (["10.0.0.1"] * 3, 1)


def test_a_failure_turns_to_the_next_address():
    async def scenario():
        addresses = Addresses("redis", 6379, resolve=Names(("10.0.0.1", "10.0.0.2")).resolve)
        seen = [(await addresses.current())[0]]
        for _ in range(2):
            addresses.failed()
            seen.append(await settled(addresses))
        await addresses.aclose()
        return seen

    assert asyncio.run(scenario()) == ["10.0.0.1", "10.0.0.2", "10.0.0.1"]


def test_the_last_good_address_is_kept_while_the_name_service_is_down():
    async def scenario():
        addresses = Addresses("redis", 6379, resolve=Names(("10.0.0.1",), OSError(5, "no server")).resolve)
        await addresses.current()
        addresses.failed()
        return await settled(addresses)

    assert asyncio.run(scenario()) == "10.0.0.1"


def test_a_moved_name_is_followed_after_a_failure():
    async def scenario():
        addresses = Addresses("redis", 6379, resolve=Names(("10.0.0.1",), ("10.0.0.9",)).resolve)
        await addresses.current()
        addresses.failed()
        return await settled(addresses)

    assert asyncio.run(scenario()) == "10.0.0.9"


def test_a_name_that_never_resolved_is_an_os_error_and_is_asked_again():
    async def scenario():
        names = Names(OSError(-2, "unknown name"), ("10.0.0.1",))
        addresses = Addresses("redis", 6379, resolve=names.resolve)
        with pytest.raises(OSError, match="redis cannot be resolved: unknown name"):
            await addresses.current()
        return (await addresses.current())[0]

    assert asyncio.run(scenario()) == "10.0.0.1"


def test_a_hanging_name_service_holds_up_only_callers_without_an_address():
    async def scenario():
        hanging = asyncio.Event()

        async def resolve(host, port):
            await hanging.wait()
            return ("10.0.0.1",)

        addresses = Addresses("redis", 6379, resolve=resolve)
        first = asyncio.create_task(addresses.current())
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        hanging.set()
        known = await settled(addresses)
        hanging.clear()
        addresses.failed()
        return known, (await addresses.current())[0], await addresses.aclose()

    assert asyncio.run(scenario()) == ("10.0.0.1", "10.0.0.1", None)
