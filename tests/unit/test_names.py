"""narwhal/names.py: each name's lookup has a thread of its own, and its answer is kept a little."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from narwhal.names import Names, addresses_of
from tests.support.processes import LIVENESS_S


class Resolver:
    """Knows the names in `book`. `hangs` is a name whose lookups end only when `let_go` is set."""

    def __init__(self, hangs: str = "", **book: tuple[str, ...] | OSError) -> None:
        self.book = book
        self.hangs = hangs
        self.let_go = threading.Event()
        self.asked: Counter[str] = Counter()

    def __call__(self, host: str) -> tuple[str, ...]:
        self.asked[host] += 1
        if host == self.hangs:
            self.let_go.wait(LIVENESS_S)
        answer = self.book[host]
        if isinstance(answer, OSError):
            raise answer
        return answer


class Net:
    """Where connections go: all are made, but to addresses in `dead`."""

    def __init__(self, **dead: OSError) -> None:
        self.dead = dead
        self.tried: list[str] = []

    async def connect(self, address: str) -> str:
        self.tried.append(address)
        if address in self.dead:
            raise self.dead[address]
        return f"to {address}"


def run(scenario: Callable[[], Awaitable[Any]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIVENESS_S):
            await scenario()

    uvloop.run(main())


def test_a_name_that_hangs_delays_no_other_name() -> None:
    resolver, net = Resolver(hangs="ill", ill=("10.0.0.9",), well=("10.0.0.1",)), Net()

    async def scenario() -> None:
        names = Names(resolver)
        waiting = [asyncio.ensure_future(names.reach("ill", net.connect)) for _ in range(100)]
        assert await names.reach("well", net.connect) == "to 10.0.0.1"
        assert not any(one.done() for one in waiting)
        resolver.let_go.set()
        assert await asyncio.gather(*waiting) == ["to 10.0.0.9"] * 100

    run(scenario)
    assert resolver.asked == {"ill": 1, "well": 1}


def test_who_gives_up_waiting_takes_the_answer_from_nobody_else() -> None:
    resolver, net = Resolver(hangs="ill", ill=("10.0.0.9",)), Net()

    async def scenario() -> None:
        names = Names(resolver)
        impatient, patient = (asyncio.ensure_future(names.reach("ill", net.connect)) for _ in range(2))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
        assert impatient.cancelled()
        resolver.let_go.set()
        assert await patient == "to 10.0.0.9"

    run(scenario)
    assert resolver.asked["ill"] == 1


def test_a_failure_is_told_to_all_who_wait_and_not_kept() -> None:
    resolver, net = Resolver(ill=OSError(-2, "unknown")), Net()

    async def scenario() -> None:
        names = Names(resolver)
        both = await asyncio.gather(
            *[names.reach("ill", net.connect) for _ in range(2)], return_exceptions=True
        )
        assert [str(one) for one in both] == ["[Errno -2] unknown"] * 2
        resolver.book["ill"] = ("10.0.0.9",)
        assert await names.reach("ill", net.connect) == "to 10.0.0.9"

    run(scenario)
    assert resolver.asked["ill"] == 2


def test_an_answer_is_good_for_more_connections() -> None:
    resolver, net = Resolver(well=("10.0.0.1",)), Net()

    async def scenario() -> None:
        names = Names(resolver)
        for _ in range(3):
            await names.reach("well", net.connect)

    run(scenario)
    assert resolver.asked["well"] == 1


def test_an_answer_is_asked_for_anew_when_its_time_is_over() -> None:
    resolver, net = Resolver(well=("10.0.0.1",)), Net()

    async def scenario() -> None:
        names = Names(resolver, kept_s=0.0)
        while resolver.asked["well"] < 3:
            await names.reach("well", net.connect)
            await asyncio.sleep(0)

    run(scenario)


def test_addresses_are_tried_in_order() -> None:
    resolver, net = (
        Resolver(well=("10.0.0.1", "10.0.0.2", "10.0.0.3")),
        Net(**{"10.0.0.1": OSError(111, "no")}),
    )

    async def scenario() -> None:
        assert await Names(resolver).reach("well", net.connect) == "to 10.0.0.2"

    run(scenario)
    assert net.tried == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    ("second", "told"), [(111, "[Errno 111] no"), (101, "[Errno 111] no, [Errno 101] no")]
)
def test_an_answer_none_of_whose_addresses_works_is_not_kept(second: int, told: str) -> None:
    resolver = Resolver(moved=("10.0.0.1", "10.0.0.2"))
    net = Net(**{"10.0.0.1": OSError(111, "no"), "10.0.0.2": OSError(second, "no")})

    async def scenario() -> None:
        names = Names(resolver)
        with pytest.raises(OSError) as caught:
            await names.reach("moved", net.connect)
        assert str(caught.value) == told
        resolver.book["moved"] = ("10.0.0.3",)
        assert await names.reach("moved", net.connect) == "to 10.0.0.3"

    run(scenario)


@pytest.mark.parametrize("address", ["10.0.0.1", "::1", "fe80::1%eth0"])
def test_an_address_is_asked_of_nobody(address: str) -> None:
    resolver, net = Resolver(), Net()

    async def scenario() -> None:
        assert await Names(resolver).reach(address, net.connect) == f"to {address}"
        assert await addresses_of(address) == (address,)

    run(scenario)
    assert not resolver.asked


@pytest.mark.parametrize("host", ["", "x" * 64 + ".test", "a\0b"])
def test_what_is_no_name_is_a_failed_lookup(host: str) -> None:
    async def scenario() -> None:
        with pytest.raises(OSError):
            await addresses_of(host)

    run(scenario)


def test_the_system_is_asked() -> None:
    async def scenario() -> None:
        assert "127.0.0.1" in await addresses_of("localhost")

    run(scenario)


def test_an_answer_behind_the_loops_end_is_dropped() -> None:
    resolver, net = Resolver(hangs="ill", ill=("10.0.0.9",)), Net()

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await Names(resolver).reach("ill", net.connect)

    run(scenario)
    left = [one for one in threading.enumerate() if one.name == "look-up"]
    resolver.let_go.set()
    for one in left:
        assert one.daemon
        one.join(LIVENESS_S)


class Noting(asyncio.SelectorEventLoop):
    """Notes how long what it is asked to do later is put off, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.delays: list[float] = []

    def call_later(self, delay: float, *rest: Any, **context: Any) -> asyncio.TimerHandle:
        self.delays.append(delay)
        return super().call_later(delay, *rest, **context)


def test_an_answer_is_kept_for_five_seconds() -> None:
    async def scenario() -> list[float]:
        await Names(Resolver(well=("10.0.0.1",))).reach("well", Net().connect)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Noting)
        return loop.delays

    with asyncio.Runner(loop_factory=Noting) as runner:
        assert runner.run(scenario()) == [5.0]
