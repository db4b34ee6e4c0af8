"""The life of the lease record (cluster.md section 2): when a released lease may be taken without a watch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from narwhal.model.lease import Acquired, HeldBy, LeaseState, LeaseVersion, LeaseView, OwnerMeta, Renewed
from narwhal.model.store_call import AcquireRequest, RenewRequest
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.memory import MemoryRunner, MemoryServer

META = OwnerMeta("r", "http://r")
TIMEOUT_S = 0.8


class Bench:
    """One server and a hand on its scripts, without any router."""

    def __init__(self) -> None:
        self.server = MemoryServer(lambda: 1_700_000_000.0)
        self.store = ScriptLeaseStore(MemoryRunner(self.server), "bench")

    async def peek(self) -> LeaseView:
        return await self.store.peek(timeout_s=TIMEOUT_S)

    async def acquire(self, token: str, *, floor: int = 0) -> Acquired:
        view = await self.peek()
        assert view.version is not None
        request = AcquireRequest(token, META, view.version, str(view.inc), floor, 5000)
        reply = await self.store.acquire(request, timeout_s=TIMEOUT_S)
        assert isinstance(reply, Acquired)
        return reply

    async def renew(self, token: str, lease: Acquired, *, seq: int) -> object:
        request = RenewRequest(token, META, lease.epoch, seq, lease.life, 5000)
        return await self.store.renew(request, timeout_s=TIMEOUT_S)


async def lossy_restart(bench: Bench) -> Acquired:
    """A's record comes back with the restart, while B, its successor, is within its D."""
    await bench.store.claim("marker", floor=0, ttl_ms=5000, timeout_s=TIMEOUT_S)
    first = await bench.acquire("a")
    await bench.renew("a", first, seq=1)
    before = bench.server.data.copy()
    await bench.acquire("b")
    bench.server.restart(before)
    return first


async def flushed(bench: Bench) -> Acquired:
    """The same under one incarnation: everything is gone, and A's late renewal plants its record anew."""
    await bench.store.claim("marker", floor=0, ttl_ms=5000, timeout_s=TIMEOUT_S)
    first = await bench.acquire("a")
    await bench.acquire("b")
    bench.server.flush()
    return first


@pytest.mark.parametrize("loss", [lossy_restart, flushed])
async def test_a_record_that_came_back_is_not_taken_at_once_when_its_dead_holder_is_released(
    loss: Callable[[Bench], Awaitable[Acquired]],
) -> None:
    bench = Bench()
    first = await loss(bench)
    await bench.renew("a", first, seq=7)
    assert await bench.store.release("a", reason="died", timeout_s=TIMEOUT_S) is True
    view = await bench.peek()
    assert view.state is LeaseState.RELEASED
    assert not view.released_for_sure


async def test_a_clean_release_may_be_taken_at_once() -> None:
    bench = Bench()
    await bench.store.claim("marker", floor=0, ttl_ms=5000, timeout_s=TIMEOUT_S)
    lease = await bench.acquire("a")
    assert isinstance(await bench.renew("a", lease, seq=1), Renewed)
    await bench.store.release("a", reason="yield", timeout_s=TIMEOUT_S)
    assert (await bench.peek()).released_for_sure


async def test_a_late_acquire_of_an_older_sight_takes_nothing() -> None:
    bench = Bench()
    await bench.store.claim("marker", floor=0, ttl_ms=5000, timeout_s=TIMEOUT_S)
    view = await bench.peek()
    await bench.acquire("a")
    late = AcquireRequest("b", META, LeaseVersion("marker", 0), str(view.inc), 0, 5000)
    assert isinstance(await bench.store.acquire(late, timeout_s=TIMEOUT_S), HeldBy)
