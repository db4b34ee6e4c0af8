"""An event loop whose clock jumps to the next timer: hours pass in milliseconds, always the same way.

Callbacks belong to the *strand* (a thread of a simulated process) in whose context they were scheduled. A
paused strand's callbacks wait in order until it goes on; a dead one's never run. There is no I/O and no
thread; what runs next depends on the order of scheduling alone, never on hashes or the real clock.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

STRAND: contextvars.ContextVar[Strand | None] = contextvars.ContextVar("strand", default=None)


class Deadlock(RuntimeError):
    """Everything waits and no timer is set."""


class Strand:
    """One thread of control that can be paused and killed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused_until = 0.0
        self.dead = False
        self.tasks: list[asyncio.Task[Any]] = []
        self.backlog: deque[asyncio.Handle] = deque()
        self._context = contextvars.copy_context()
        self._context.run(STRAND.set, self)

    def context(self) -> contextvars.Context:
        """A fresh context whose callbacks belong to this strand."""
        return self._context.copy()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a coroutine on this strand; what it starts and schedules belongs to it too. Nobody awaits
        it: what it raises goes to the loop's exception handler at once."""
        task: asyncio.Task[Any] = self.context().run(asyncio.get_running_loop().create_task, work)
        task.add_done_callback(_told)
        return task


class _Timed(asyncio.TimerHandle):
    """What runs at a time, or next: as its base makes it, without looking for where it was made."""

    __slots__ = ()

    def __init__(
        self, when: float, callback: Any, args: Any, loop: Any, context: contextvars.Context | None
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = True


class VirtualLoop(asyncio.BaseEventLoop):
    """`time()` is virtual seconds from 0. `on_step` is called after every callback of a strand.

    Timers of one instant run in the order in which they were set.
    """

    def __init__(self) -> None:
        super().__init__()
        self._virtual_now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self.steps = 0
        self.on_step: Callable[[], None] = lambda: None
        self.set_task_factory(_remembering)

    def time(self) -> float:
        return self._virtual_now

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Runs `main` to its end; the running loop is set as usual."""
        return self.run_until_complete(main)

    def pause(self, strand: Strand, until: float) -> None:
        """Nothing of the strand runs before `until`; pauses do not shorten each other."""
        strand.paused_until = max(strand.paused_until, until)
        self.call_at(strand.paused_until, self._go_on, strand, context=contextvars.Context())

    def _go_on(self, strand: Strand) -> None:
        if strand.paused_until <= self._virtual_now and not strand.dead:
            self._ready.extendleft(reversed(strand.backlog))
            strand.backlog.clear()

    def bury(self, strands: list[Strand]) -> None:
        """Ends everything that strands still hold, so that nothing is destroyed while pending."""
        self.on_step = lambda: None
        for strand in strands:
            strand.dead, strand.paused_until = False, 0.0
            self._ready.extend(strand.backlog)
            strand.backlog.clear()
        tasks = [task for strand in strands for task in strand.tasks if not task.done()]
        for task in tasks:
            task.cancel()
        self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True) if tasks else asyncio.sleep(0))

    # --- BaseEventLoop's inner side, without its checks: most of a simulation's time is spent here ------

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Timed(self._virtual_now, callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = _Timed(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._virtual_now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is dropped when its time comes."""

    def _run_once(self) -> None:
        timers, ready = self._timers, self._ready
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise Deadlock(f"nothing can happen any more at {self._virtual_now}")
            self._virtual_now = max(self._virtual_now, timers[0][0])
        now = self._virtual_now
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            if not timer._cancelled:
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            context = handle._context
            strand: Strand | None = context.get(STRAND)
            if strand is not None and (strand.dead or strand.paused_until > now):
                strand.backlog.append(handle)
                continue
            try:
                context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._told(handle, error)
            self.steps += 1
            if strand is not None:
                self.on_step()

    def _told(self, handle: asyncio.Handle, error: BaseException) -> None:
        self.call_exception_handler({"message": "a callback failed", "exception": error, "handle": handle})

    def _process_events(self, event_list: Any) -> None:
        raise NotImplementedError("there is no I/O in virtual time")

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector."""


def _remembering(loop: Any, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
    """Tasks are kept with their strand until its end: the garbage collector decides nothing here."""
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
    context = options.get("context")
    strand = context.get(STRAND) if context is not None else STRAND.get()
    if strand is not None:
        strand.tasks.append(task)
        task.add_done_callback(_Forget(strand))
    return task


def _told(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": "a task of a strand failed", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)


class _Forget:
    """Drops a finished task from its strand's list."""

    def __init__(self, strand: Strand) -> None:
        self._strand = strand

    def __call__(self, task: asyncio.Task[Any]) -> None:
        if task in self._strand.tasks:
            self._strand.tasks.remove(task)


class StrandClock:
    """The Clock port on virtual time, running `rate` times as fast, ahead by `offset_s`."""

    def __init__(self, loop: VirtualLoop, rate: float = 1.0, offset_s: float = 0.0) -> None:
        self._loop = loop
        self.rate = rate
        self._offset_s = offset_s

    def now(self) -> float:
        return self._offset_s + self._loop._virtual_now * self.rate

    def wall(self) -> float:
        return 1_700_000_000.0 + self._loop._virtual_now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / self.rate)
