"""A proxy in front of Redis that knows requests from replies and can lose, hold or cut each of them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import BinaryIO

from narwhal.store.keys import SCRIPT_KEYS
from narwhal.store.scripts import load

CONNECT_S = 2.0


class Fate(Enum):
    """What becomes of one request and its reply."""

    PASS = "pass"
    SWALLOW = "swallow"
    """It is executed; the reply never arrives and the connection stays open, silent."""
    CUT = "cut"
    """It is executed, the reply arrives, and the connection is gone right after it."""
    LATE = "late"
    """It is executed, on a connection of its own, only when `release_late` is called; no reply."""
    LOST = "lost"
    """It never arrives. The connection stays open, silent."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `what` is the script's name, else the command."""

    words: tuple[bytes, ...]
    raw: bytes

    @property
    def what(self) -> str:
        command = self.words[0].upper().decode()
        if command not in ("EVALSHA", "EVAL"):
            return command
        return _names().get(self.words[1].decode(errors="replace"), command)


@cache
def _names() -> dict[str, str]:
    scripts = [load(name) for name in SCRIPT_KEYS]
    return {script.sha1: script.name for script in scripts} | {script.body: script.name for script in scripts}


class FaultProxy:
    """Passes everything until told otherwise; `target` may be moved. `judge` decides about each request, or
    answers in the server's place, which then never hears of it."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.judge: Callable[[Asked], Fate | bytes] = lambda asked: Fate.PASS
        self.seen: list[str] = []
        """What was asked, in order."""
        self.connections = 0
        self._late: list[Asked] = []
        self._ended = False
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def heal(self) -> None:
        """Passes everything again, also on connections that fell silent: they are cut."""
        self.judge = lambda asked: Fate.PASS
        self.cut()

    def cut(self) -> None:
        """Ends every connection, as a moved address does."""
        for one in tuple(self._open):
            _end(one)

    def release_late(self) -> int:
        """Executes what was held, in order, each on a connection of its own. Gives how many."""
        held, self._late = self._late, []
        for asked in held:
            with socket.create_connection(self.target, timeout=CONNECT_S) as far:
                far.sendall(asked.raw)
                _reply(far.makefile("rb"))
        return len(held)

    def close(self) -> None:
        self._ended = True
        for one in (self._listener, *tuple(self._open)):
            _end(one)
        self._listener.close()

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        self._open.add(near)
        try:
            with socket.create_connection(self.target, timeout=CONNECT_S) as far:
                far.settimeout(None)
                self._open.add(far)
                self._relay(near, far)
                self._open.discard(far)
        except (OSError, EOFError):
            pass
        finally:
            self._open.discard(near)
            near.close()

    def _relay(self, near: socket.socket, far: socket.socket) -> None:
        requests, replies, silent = near.makefile("rb"), far.makefile("rb"), False
        while True:
            asked = _request(requests)
            if silent:
                continue
            self.seen.append(asked.what)
            fate = self.judge(asked)
            if fate is Fate.LATE:
                self._late.append(asked)
            if fate in (Fate.LATE, Fate.LOST):
                silent = True
                continue
            if isinstance(fate, bytes):
                near.sendall(fate)
                continue
            far.sendall(asked.raw)
            answer = _reply(replies)
            silent = fate is Fate.SWALLOW
            if not silent:
                near.sendall(answer)
            if fate is Fate.CUT:
                return


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _line(source: BinaryIO) -> bytes:
    line = source.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError
    return line


def _bulk(source: BinaryIO, head: bytes) -> bytes:
    length = int(head[1:])
    return source.read(length + 2) if length >= 0 else b""


def _request(source: BinaryIO) -> Asked:
    """RESP: an array of bulk strings."""
    raw = _line(source)
    words = []
    for _ in range(int(raw[1:])):
        head = _line(source)
        body = _bulk(source, head)
        words.append(body[:-2])
        raw += head + body
    return Asked(tuple(words), raw)


def _reply(source: BinaryIO) -> bytes:
    """One whole RESP2 reply."""
    head = _line(source)
    if head[:1] == b"$":
        return head + _bulk(source, head)
    if head[:1] == b"*":
        return head + b"".join(_reply(source) for _ in range(max(0, int(head[1:]))))
    return head


@contextmanager
def fault_proxy(port: int) -> Iterator[FaultProxy]:
    proxy = FaultProxy(("127.0.0.1", port))
    try:
        yield proxy
    finally:
        proxy.close()


def for_a_while(proxy: FaultProxy, judge: Callable[[Asked], Fate | bytes], seconds: float) -> None:
    """Judges so for some time, then heals."""
    proxy.judge = judge
    time.sleep(seconds)
    proxy.heal()
