"""engine/pool.py: idle connections are reused newest first and let go before the engine would."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

from narwhal.engine.connection import Connection
from narwhal.engine.pool import IDLE_S, IdleConnections
from tests.unit.engine.test_wheel import ManualLoop


class PoolLoop(ManualLoop):
    def call_later(self, delay: float, callback: Any) -> Any:
        return self.call_at(self.now + delay, callback)


@dataclass(eq=False)
class Line:
    """What the pool asks of a connection."""

    iid: str = "e0"
    idle: bool = True
    aborted: list[bool] = field(default_factory=list)

    def abort(self) -> None:
        self.idle = False
        self.aborted.append(True)


def make() -> tuple[PoolLoop, IdleConnections]:
    loop = PoolLoop()
    return loop, IdleConnections(cast(asyncio.AbstractEventLoop, loop))


def put(pool: IdleConnections, *lines: Line) -> None:
    for line in lines:
        pool.put(cast(Connection, line))


def test_the_newest_is_taken_first() -> None:
    _, pool = make()
    first, second = Line(), Line()
    put(pool, first, second)
    assert [pool.take("e0"), pool.take("e0"), pool.take("e0")] == [second, first, None]


def test_engines_do_not_share() -> None:
    _, pool = make()
    put(pool, Line("e1"))
    assert pool.take("e0") is None
    assert len(pool) == 1


def test_idle_ones_are_let_go_in_time() -> None:
    loop, pool = make()
    old, young = Line(), Line()
    put(pool, old)
    loop.advance(2.0)
    put(pool, young)
    loop.advance(IDLE_S - 2.0 + 0.3)
    assert (old.aborted, young.aborted) == ([True], [])
    loop.advance(2.0)
    assert young.aborted == [True]
    assert len(pool) == 0
    loop.advance(1.0)
    assert loop.timer is None, "nothing left to sweep for"


def test_idle_ones_are_let_go_before_an_engine_does() -> None:
    """vLLM closes idle connections after 5 s."""
    loop, pool = make()
    line = Line()
    put(pool, line)
    loop.advance(4.9)
    assert line.aborted == [True]


def test_the_sweep_comes_when_one_is_due_and_not_before() -> None:
    loop, pool = make()
    put(pool, Line(), Line())
    loop.advance(IDLE_S - 0.1)
    assert loop.turns == 0
    pool.take("e0")
    loop.advance(0.3)
    assert (loop.turns, len(pool)) == (1, 0)


def test_one_that_is_too_old_is_not_taken_even_before_the_sweep() -> None:
    loop, pool = make()
    line = Line()
    put(pool, line)
    loop.now += IDLE_S
    assert pool.take("e0") is None
    assert line.aborted == [True]


def test_one_that_cannot_be_used_again_is_closed_instead_of_kept() -> None:
    _, pool = make()
    put(pool, line := Line(idle=False))
    assert line.aborted == [True]
    assert len(pool) == 0


def test_one_that_the_engine_closed_is_passed_over() -> None:
    _, pool = make()
    good, closed = Line(), Line()
    put(pool, good, closed)
    closed.idle = False
    assert pool.take("e0") is good
    assert len(pool) == 0


def test_forgetting_one_leaves_the_others() -> None:
    _, pool = make()
    one, two = Line(), Line()
    put(pool, one, two)
    pool.forget(cast(Connection, one))
    pool.forget(cast(Connection, one))
    assert len(pool) == 1
    assert pool.take("e0") is two


def test_room_is_made_with_the_oldest_of_all() -> None:
    loop, pool = make()
    old, young = Line("e0"), Line("e1")
    put(pool, old)
    loop.now += 1
    put(pool, young)
    pool.drop_oldest()
    assert (old.aborted, young.aborted) == ([True], [])
    pool.close()
    assert young.aborted == [True]
    pool.drop_oldest()
