"""The keeper at its edges: servers that cannot be used, commands before it runs, what it hands on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from narwhal.cluster.gate import LeasedGate
from narwhal.cluster.lease_loop import KeeperLinks, LeaseKeeper, Standing
from narwhal.errors import InvariantViolation, StoreProtocolError, StoreUnreachable
from narwhal.model.control import RouterState
from narwhal.model.handover import PledgeAnswer, PledgeQuestion
from narwhal.model.leadership import LeaseSight, Remembered
from narwhal.model.lease import AcquireReply, LeaseView, OwnerMeta
from narwhal.model.settings import LeaseTimings
from narwhal.model.store_call import AcquireRequest
from narwhal.policy.candidacy import ElectionSettings
from narwhal.policy.election import Election
from narwhal.policy.intents import Extended, Fenced, Granted, Released
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.memory import MemoryRunner, MemoryServer
from tests.support.virtual_time import StrandClock, VirtualLoop


class Unwilling(ScriptLeaseStore):
    """A store that raises what the test sets, and notes when it was asked, and which tokens were renewed."""

    __slots__ = ("asked", "clock", "error", "renewed", "sent")

    def __init__(self, server: MemoryServer, clock: StrandClock) -> None:
        super().__init__(MemoryRunner(server), "c")
        self.clock = clock
        self.error: Exception | None = None
        self.asked: list[float] = []
        self.renewed: list[str] = []
        self.sent: Callable[[AcquireRequest], None] = lambda request: None

    async def peek(self, *, timeout_s: float) -> LeaseView:
        self.asked.append(self.clock.now())
        if self.error:
            raise self.error
        return await super().peek(timeout_s=timeout_s)

    async def acquire(self, request: AcquireRequest, *, timeout_s: float) -> AcquireReply:
        self.sent(request)
        return await super().acquire(request, timeout_s=timeout_s)

    async def renew(self, request: Any, *, timeout_s: float) -> Any:
        self.asked.append(self.clock.now())
        self.renewed.append(request.token)
        if self.error:
            raise self.error
        return await super().renew(request, timeout_s=timeout_s)


class Room:
    """One keeper with everything that it was given."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.clock = StrandClock(self.loop)
        self.store = Unwilling(MemoryServer(lambda: 1_700_000_000.0 + self.loop.time()), self.clock)
        self.gate = LeasedGate(self.clock, "r0")
        self.told: list[Any] = []
        self.beats: Callable[[], float] = self.clock.now
        self.tell_token: Callable[[str, int], None] = lambda token, floor: None
        self._drawn = 0
        machine = Election(ElectionSettings("r0", LeaseTimings()), Remembered(), now=self.clock.now())
        links = KeeperLinks(
            self.clock,
            OwnerMeta("r0", "http://r0"),
            self.told.append,
            lambda: self.beats(),
            draw=self._draw,
            jitter=lambda: 0.0,
            tell_token=lambda token, floor: self.tell_token(token, floor),
        )
        self.keeper = LeaseKeeper(machine, self.store, gate=self.gate, links=links)
        self.keeper.standing = Standing(may_compete=True)

    def _draw(self) -> str:
        self._drawn += 1
        return f"t{self._drawn}"

    def effects(self) -> list[Any]:
        return [one for one in self.told if not isinstance(one, LeaseSight)]

    def run(self, seconds: float) -> None:
        """Lets the keeper work; what it raises is raised here."""

        async def whole() -> None:
            work = self.loop.create_task(self.keeper.run())
            await self.clock.sleep(seconds)
            self.keeper.stop()
            await work

        try:
            self.loop.run(whole())
        finally:
            self.loop.close()

    async def granted(self) -> str:
        while not any(isinstance(one, Granted) for one in self.told):
            await self.clock.sleep(0.05)
        return next(one.token for one in self.told if isinstance(one, Granted))

    def play(self, script: Callable[[], Any]) -> None:
        async def whole() -> None:
            work = self.loop.create_task(self.keeper.run())
            await script()
            self.keeper.stop()
            await work

        try:
            self.loop.run(whole())
        finally:
            self.loop.close()


def test_a_server_that_cannot_be_used_refuses_the_start() -> None:
    room = Room()
    room.store.error = StoreProtocolError("INFO is hidden")

    async def whole() -> None:
        await room.keeper.run()

    with pytest.raises(StoreProtocolError, match="INFO is hidden"):
        room.loop.run(whole())
    room.loop.close()


def test_the_same_answer_later_is_no_answer() -> None:
    room = Room()

    async def script() -> None:
        await room.clock.sleep(1.0)
        room.store.error = StoreProtocolError("nonsense")
        await room.clock.sleep(2.0)
        assert room.gate.sight.store_reachable is False
        assert room.gate.sight.store_failures > 3
        room.store.error = None
        await room.clock.sleep(1.0)
        assert room.gate.sight.store_reachable is True

    room.play(script)


def test_a_lease_is_renewed_every_second_and_given_back_at_the_end() -> None:
    room = Room()
    room.run(12.0)
    kinds = [type(one) for one in room.effects()]
    assert kinds[0] is Granted and kinds[-1] is Released
    assert 5 <= kinds.count(Extended) <= 8
    assert not room.gate.alive(room.effects()[0].token)


def test_nothing_is_sent_for_a_token_that_the_main_loop_fenced() -> None:
    room = Room()

    async def script() -> None:
        token = await room.granted()
        room.gate.fence(token, "an engine refused the epoch")
        room.store.renewed.clear()
        await room.clock.sleep(1.5)
        assert room.store.renewed == []
        assert any(isinstance(one, Fenced) and one.token == token for one in room.told)

    room.play(script)


def test_renewals_without_an_answer_are_repeated_until_just_before_the_deadline() -> None:
    room = Room()

    async def script() -> None:
        await room.granted()
        await room.clock.sleep(1.5)
        room.store.error = StoreUnreachable("refused")
        room.store.asked.clear()
        grip = room.gate.grip
        assert grip is not None
        await room.clock.sleep(grip.valid_until - room.clock.now())
        tries = [at for at in room.store.asked if at < grip.valid_until]
        assert len(tries) >= 8
        assert all(at < grip.valid_until - 0.1 for at in tries)
        await room.clock.sleep(0.1)
        assert any(isinstance(one, Fenced) for one in room.told)
        room.store.error = None

    room.play(script)


def test_a_silent_main_loop_is_not_renewed_for_until_it_beats_again() -> None:
    room = Room()

    async def script() -> None:
        await room.granted()
        stopped = room.clock.now()
        room.beats = lambda: stopped
        await room.clock.sleep(2.5)
        extended = sum(isinstance(one, Extended) for one in room.told)
        await room.clock.sleep(1.0)
        assert sum(isinstance(one, Extended) for one in room.told) == extended
        room.beats = room.clock.now
        await room.clock.sleep(0.3)
        assert sum(isinstance(one, Extended) for one in room.told) > extended
        assert not any(isinstance(one, Fenced) for one in room.told)

    room.play(script)


def test_commands_before_the_start_are_kept() -> None:
    room = Room()
    room.keeper.stop()

    async def whole() -> None:
        await room.keeper.run()

    room.loop.run(whole())
    room.loop.close()
    assert room.gate.sight.state is RouterState.STOPPED


def test_the_sight_names_the_owner_without_its_token() -> None:
    room = Room()

    async def script() -> None:
        token = await room.granted()
        sight = room.gate.sight
        assert sight.owner is not None and sight.owner.router_id == "r0"
        assert token not in sight.holder and sight.holder.startswith("r0:")
        assert (sight.record, sight.ttl_s, sight.ttl_ms_max) == ("held", 5.0, 5000)

    room.play(script)


def test_a_token_is_told_before_its_acquire_is_sent() -> None:
    """The warden must know it if the process ends between the send and the reply."""
    room = Room()
    order: list[str] = []
    room.tell_token = lambda token, floor: order.append(f"told {token} above {floor}")
    room.store.sent = lambda request: order.append(f"sent {request.token} above {request.floor}")
    room.run(8.0)
    assert len(order) == 2
    assert order[0].removeprefix("told ") == order[1].removeprefix("sent ")


@pytest.mark.parametrize("reachable", [True, False])
def test_a_bug_in_a_command_ends_the_keeper(reachable: bool) -> None:
    """The loop would only log it, and the keeper go on with a machine that contradicts itself."""
    room = Room()

    async def whole() -> None:
        work = room.loop.create_task(room.keeper.run())
        token = await room.granted()
        if not reachable:
            room.store.error = StoreUnreachable("refused")
            await room.clock.sleep(1.2)
        room.keeper._machine.drain = _contradiction  # type: ignore[method-assign]
        room.keeper.drain(token)
        async with asyncio.timeout(2.0):
            await work

    with pytest.raises(InvariantViolation, match="drained twice"):
        room.loop.run(whole())
    room.loop.close()


def _contradiction(token: str) -> None:
    raise InvariantViolation("drained twice")


def test_a_bug_in_a_pledge_refuses_it_at_once_and_ends_the_keeper() -> None:
    room = Room()
    question = PledgeQuestion("r0", "r1:0123456789abcdef", 1, ttl_s=5.0, nonce="n")

    def contradiction(asked: PledgeQuestion, now: float) -> PledgeAnswer:
        raise InvariantViolation("pledged twice")

    async def whole() -> None:
        work = room.loop.create_task(room.keeper.run())
        await room.clock.sleep(1.0)
        room.keeper._machine.pledge = contradiction  # type: ignore[method-assign]
        before = room.clock.now()
        answer = await room.keeper.pledge(question)
        assert answer == PledgeAnswer(False, "the lease keeper failed", "n")
        assert room.clock.now() == before
        async with asyncio.timeout(2.0):
            await work

    with pytest.raises(InvariantViolation, match="pledged twice"):
        room.loop.run(whole())
    room.loop.close()


class Hesitating(list[Callable[[], None]]):
    """The early commands, where one takes its time to get in."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()

    def append(self, command: Callable[[], None]) -> None:
        self.entered.set()
        time.sleep(0.2)
        super().append(command)


def test_a_command_that_meets_the_start_is_not_lost() -> None:
    room = Room()
    room.keeper._mail._early = early = Hesitating()
    posting = threading.Thread(target=room.keeper.stop)
    posting.start()
    assert early.entered.wait(10.0)

    async def whole() -> None:
        async with asyncio.timeout(60.0):
            await room.keeper.run()

    room.loop.run(whole())
    room.loop.close()
    posting.join(10.0)
    assert room.gate.sight.state is RouterState.STOPPED


def test_a_command_that_meets_the_closing_of_the_loop_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room()
    room.loop.close()
    room.keeper._mail._loop = closed = asyncio.new_event_loop()
    closed.close()
    with monkeypatch.context() as moment:
        moment.setattr(closed, "is_closed", lambda: False)  # asked a moment before it closed
        room.keeper.wake()
