from __future__ import annotations

from collections.abc import Callable

from narwhal.sim.wheel import TICK_S, Timed, Wheel


class HandTurned:
    """A loop whose time passes when the test says so; at most one timer is ever armed."""

    def __init__(self) -> None:
        self.at = 100.0
        self.armed: Timer | None = None

    def time(self) -> float:
        return self.at

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer:
        assert self.armed is None, "the wheel arms one timer at a time"
        self.armed = Timer(self, when, callback=callback)
        return self.armed

    def turn(self) -> None:
        """Let the armed timer come due."""
        timer = self.armed
        assert timer is not None
        self.armed = None
        self.at = max(self.at, timer.when)
        timer.callback()

    def run(self) -> None:
        while self.armed is not None:
            self.turn()


class Timer:
    def __init__(self, loop: HandTurned, when: float, *, callback: Callable[[], None]) -> None:
        self.when, self.callback, self._loop = when, callback, loop

    def cancel(self) -> None:
        if self._loop.armed is self:
            self._loop.armed = None


class Noted(Timed):
    """Notes its name, and comes back `again` times with no time between."""

    def __init__(self, name: str, log: list[str], *, wheel: Wheel, again: int = 0) -> None:
        super().__init__()
        self._name, self._log, self._wheel, self._again = name, log, wheel, again

    def fire(self, now: float) -> None:
        self._log.append(self._name)
        if self._again:
            self._again -= 1
            self._wheel.add(self, now)


class Scene:
    def __init__(self) -> None:
        self.loop = HandTurned()
        self.wheel = Wheel(self.loop)
        self.log: list[str] = []

    def add(self, name: str, delay: float, *, again: int = 0) -> Noted:
        timed = Noted(name, self.log, wheel=self.wheel, again=again)
        self.wheel.add(timed, self.loop.at + delay)
        return timed


def test_fires_in_the_order_of_due_times() -> None:
    scene = Scene()
    for name, delay in (("late", 0.03), ("soon", 0.0), ("middle", 0.015)):
        scene.add(name, delay)
    scene.loop.run()
    assert scene.log == ["soon", "middle", "late"]


def test_never_fires_before_the_due_time() -> None:
    scene = Scene()
    scene.add("one", 0.0105)
    scene.loop.turn()
    assert scene.log == ["one"]
    assert 100.0105 <= scene.loop.at <= 100.0105 + TICK_S


def test_a_cancelled_entry_does_not_fire() -> None:
    scene = Scene()
    scene.add("one", 0.0)
    scene.add("two", 0.002).cancel()
    scene.add("three", 0.01)
    scene.loop.run()
    assert scene.log == ["one", "three"]


def test_an_entry_that_is_due_again_at_once_waits_for_the_next_turn() -> None:
    scene = Scene()
    scene.add("a", 0.0, again=2)
    scene.add("b", 0.0, again=2)
    scene.loop.turn()
    assert scene.log == ["a", "b"]
    scene.loop.run()
    assert scene.log == ["a", "b"] * 3


def test_adding_again_moves_an_entry() -> None:
    scene = Scene()
    moved = scene.add("moved", 0.001)
    scene.wheel.add(moved, scene.loop.at + 0.02)
    scene.add("other", 0.01)
    scene.loop.run()
    assert scene.log == ["other", "moved"]


def test_a_late_turn_fires_all_that_is_due() -> None:
    scene = Scene()
    for index in range(5):
        scene.add(str(index), index * 0.01)
    scene.loop.at += 1.0
    scene.loop.turn()
    assert scene.log == ["0", "1", "2", "3", "4"]
    assert scene.loop.armed is None
