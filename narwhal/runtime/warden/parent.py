"""The warden's process: starts the router as its child, watches it, settles what it leaves.

It holds no listening socket and no file of the router's. One thread, no loop of its own: it waits for a
signal, a word of the router or its next tick, and asks the store only about a stalled router and after a
router's end.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType

from narwhal.clock import SystemClock
from narwhal.cluster.warden import Settlement, WardenStores, somebody_is_ready
from narwhal.model.legacy import Legacy
from narwhal.model.settings import ServeOptions
from narwhal.policy.warden import TICK_S, Ending, Meaning, StallCount
from narwhal.runtime.exit_status import CRASHED
from narwhal.runtime.warden.board import Board
from narwhal.runtime.warden.ward import READY, STOPPING, Ward
from narwhal.store.connection import Login
from narwhal.store.handoff import ScriptHandoffStore
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.registry import ScriptRegistry
from narwhal.store.scripts import RedisRunner
from narwhal.store.sentinel import connection_to
from narwhal.telemetry import logs, sd_notify

log = logging.getLogger("narwhal.warden")

HEEDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


@dataclass(frozen=True, slots=True)
class Child:
    """The router's process, what it tells, and our side of its pipe."""

    pid: int
    board: Board
    line: socket.socket


def guarded(
    options: ServeOptions, env: Mapping[str, str], *, router: Callable[[Ward, Mapping[str, str]], int]
) -> int:
    """Forks. In the child: runs `router` with its ward and an environment; in the parent: watches it.

    Returns the exit status in both. Call it with one thread and before anything big is loaded.
    """
    board, (ours, theirs) = Board(), socket.socketpair()
    warden = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, HEEDED)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # else both would print it
    gc.freeze()  # what both share stays shared when one of them collects
    pid = os.fork()
    if pid == 0:
        ours.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGCHLD})
        ward = Ward(board, theirs, warden=warden)
        return router(ward, {name: value for name, value in env.items() if name != "NOTIFY_SOCKET"})
    gc.enable()
    theirs.close()
    logs.configure(options.log_level, options.log_format)
    return Warden(Child(pid, board, ours), options, env=env).run()


class Warden:
    """Watches one router to its end. `run` once."""

    def __init__(self, child: Child, options: ServeOptions, *, env: Mapping[str, str]) -> None:
        self._child = child
        self._options = options
        self._env = env
        self._clock = SystemClock()
        self._stall = StallCount()
        self._ending = Ending()
        self._log_file = logs.LogFile()
        self._status: int | None = None
        self._told: list[int] = []
        self._reader, self._writer = os.pipe()
        self._poll = select.poll()
        for fd in (self._reader, child.line.fileno()):
            self._poll.register(fd, select.POLLIN)

    def run(self) -> int:
        """The router's exit status; 1 if a signal ended it."""
        self._heed_signals()
        tick_at = self._clock.now()
        while self._status is None:
            self._wait(tick_at)
            self._take_signals()
            now = self._clock.now()
            if now >= self._ending.kill_at:
                self._send(signal.SIGKILL)
            if now >= tick_at and self._status is None:
                self._tick(now)
                tick_at = now + TICK_S
        self._settle()
        return self._status

    # --- signals ---------------------------------------------------------------------------------

    def _heed_signals(self) -> None:
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in HEEDED:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEEDED)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        """As soon as the signal comes, also while the store is asked."""
        if number in (signal.SIGTERM, signal.SIGINT):
            self._pass_on(self._ending.signalled(self._clock.now()))
        else:
            self._told.append(number)

    def _pass_on(self, meaning: Meaning) -> None:
        if meaning is not Meaning.NOTHING:
            self._send(signal.SIGTERM)

    def _take_signals(self) -> None:
        told, self._told = self._told, []
        if signal.SIGHUP in told:
            self._log_file.reopen()
            self._send(signal.SIGHUP)
        if signal.SIGCHLD in told:
            self._reap()

    def _send(self, number: int) -> None:
        """Not after the router was reaped: its PID may be another's by then."""
        if self._status is None:
            os.kill(self._child.pid, number)

    def _reap(self) -> None:
        """The router, and as PID 1 of a container whatever else was orphaned there."""
        while True:
            try:
                pid, state = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child.pid:
                self._ended(os.waitstatus_to_exitcode(state))

    def _ended(self, code: int) -> None:
        if code < 0:
            log.error("the router (pid %d) was ended by %s", self._child.pid, signal.Signals(-code).name)
        self._status = code if code >= 0 else CRASHED

    # --- waiting and watching --------------------------------------------------------------------

    def _wait(self, until: float) -> None:
        left_s = min(until, self._ending.kill_at) - self._clock.now()
        for fd, _ in self._poll.poll(1000 * min(max(0.0, left_s), TICK_S)):
            if fd == self._reader:
                os.read(fd, 4096)
            else:
                self._hear()

    def _hear(self) -> None:
        words = self._child.line.recv(16)
        if not words:
            self._poll.unregister(self._child.line)  # the router ends: its status comes with SIGCHLD
        for word, state in ((READY, sd_notify.READY), (STOPPING, sd_notify.STOPPING)):
            if word in words:
                sd_notify.notify(state, self._env)

    def _tick(self, now: float) -> None:
        board = self._child.board
        if not self._stall.tick(now, board.beats) or not self._standby_is_ready():
            return
        if self._stall.alive(board.beats):
            return  # it came back while we asked
        log.error("the router (pid %d) stands still and a standby is ready: it is killed", self._child.pid)
        self._send(signal.SIGKILL)

    # --- the store -------------------------------------------------------------------------------

    def _standby_is_ready(self) -> bool:
        legacy = self._child.board.legacy()

        async def ask() -> bool:
            stores = self._stores(legacy)
            try:
                return await somebody_is_ready(stores.registry, but=legacy.router_id)
            finally:
                await stores.registry.aclose()

        return not legacy.empty and asyncio.run(ask())

    def _settle(self) -> None:
        """What the router left. Its time is T; an order to end at once ends it after one round."""
        legacy, until = self._child.board.legacy(), self._clock.now() + self._options.timings.ttl_s

        async def settle() -> None:
            stores = self._stores(legacy)
            settlement = Settlement(legacy, stores, clock=self._clock)
            try:
                await settlement.run(until=until, given_up=lambda: self._ending.cut)
            finally:
                await stores.registry.aclose()
            for what in settlement.left:
                log.error("%s of the ended router could not be settled in time", what)
            if legacy.tokens and not settlement.left:
                log.info("the counters of the ended router are flushed, its lease is given back")

        if not legacy.empty:
            asyncio.run(settle())

    def _stores(self, legacy: Legacy) -> WardenStores:
        address, cluster = self._options.store, self._options.cluster
        assert address is not None
        login = Login(f"narwhal-{legacy.router_id}-warden", self._options.store_password)
        runner = RedisRunner(connection_to(address, login))
        return WardenStores(
            lease=ScriptLeaseStore(runner, cluster),
            handoffs=ScriptHandoffStore(runner, cluster),
            registry=ScriptRegistry(runner, cluster),
        )
