"""The router's side of its warden: signals as the warden sends them, heartbeats, the end of the pipe."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable

from narwhal.policy.totals import Totals
from narwhal.runtime.warden.board import Board

BEAT_S = 0.25
READY, STOPPING = b"R", b"S"
_PR_SET_PDEATHSIG = 1
HANDED_ON = frozenset({signal.SIGTERM, signal.SIGHUP})
"""Signals that the warden hands on. They are held back until the router's loop can take them."""


class Ward:
    """`Supervisor` of a router that has a warden. Made in the router's process, right after the fork."""

    def __init__(self, board: Board, line: socket.socket, *, warden: int) -> None:
        """`line`: this side of a socket pair whose other side only the warden holds."""
        self.orders = (signal.SIGTERM,)
        self._board = board
        self._line = line
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: Callable[[], None] | None = None
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both; the warden hands on one
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _end_with(warden)

    def name(self, router_id: str, run: str) -> None:
        self._board.name(router_id, run)

    def tell(self, token: str, floor: int) -> None:
        self._board.tell(token, floor)

    def follow(self, totals: Totals) -> None:
        totals.watchers.append(lambda: self._board.count(totals.own_counts))

    def watch(self, loop: asyncio.AbstractEventLoop, *, ended: Callable[[], None]) -> None:
        self._loop, self._ended = loop, ended
        loop.add_reader(self._line, self._gone)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_ON)
        self._beat(loop)

    def ready(self) -> None:
        self._say(READY)

    def stopping(self) -> None:
        self._say(STOPPING)

    def rest(self) -> None:
        self._board.rest()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._board.beat()
        loop.call_later(BEAT_S, self._beat, loop)

    def _gone(self) -> None:
        """The warden sends nothing: readable means that its side is closed."""
        if self._loop is not None and self._ended is not None:
            self._loop.remove_reader(self._line)
            self._ended()

    def _say(self, word: bytes) -> None:
        try:
            self._line.send(word)
        except OSError:
            return  # `_gone` tells it to whom it matters


def _end_with(warden: int) -> None:
    """SIGTERM when the warden ends, also if it ended before this call (prctl(2)). Linux; elsewhere the end of
    the pipe has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() not in (warden, 0):  # 0: it is in another PID namespace, where we cannot see it
        os.kill(os.getpid(), signal.SIGTERM)
