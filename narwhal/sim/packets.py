"""Faults of packet borders: the same bytes, cut where a reader may not expect it.

One packet per turn of the loop, so that each leaves in a write of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from narwhal.sim.faults import Fault

Cut = Callable[[bytes], Iterable[bytes]]
"""Cuts body bytes into packets."""


def one_byte(data: bytes) -> Iterable[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


def split_at(place: int) -> Cut:
    """Two packets, cut at byte `place` of what is pushed at once."""

    def cut(data: bytes) -> Iterable[bytes]:
        return (data[:place], data[place:])

    return cut


def inside_utf8(data: bytes) -> Iterable[bytes]:
    """Cut after the first byte of every multi-byte character."""
    start = 0
    for at, byte in enumerate(data):
        if byte >= 0xC0:
            yield data[start : at + 1]
            start = at + 1
    yield data[start:]


class Packets:
    """Sends body bytes as HTTP chunks of one packet each, one per loop turn.

    `gather_s`: nothing leaves before the whole body is there, the cut applies to that, and so many
    seconds pass between packets.
    """

    def __init__(self, cut: Cut, write: Callable[[bytes], None], *, gather_s: float | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._cut = cut
        self._write = write
        self._gap_s = gather_s or 0.0
        self._gathered: list[bytes] | None = None if gather_s is None else []
        self._queue: deque[bytes] = deque()
        self._finish: Callable[[], None] | None = None
        self._turning = False

    def push(self, data: bytes) -> None:
        if self._gathered is not None:
            self._gathered.append(data)
        else:
            self._enqueue(data)

    def finish(self, callback: Callable[[], None]) -> None:
        """Call back when everything has been written."""
        self._finish = callback
        if self._gathered is not None:
            gathered, self._gathered = self._gathered, None
            self._enqueue(b"".join(gathered))
        self._go_on()

    def _enqueue(self, data: bytes) -> None:
        pieces = self._cut(data)
        self._queue.extend(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
        self._go_on()

    def _go_on(self) -> None:
        if not self._turning:
            self._turning = True
            self._loop.call_later(self._gap_s, self._turn)

    def _turn(self) -> None:
        self._turning = False
        if self._queue:
            self._write(self._queue.popleft())
            self._go_on()
        elif self._finish is not None:
            callback, self._finish = self._finish, None
            callback()


def packets_for(faults: Mapping[str, Fault], write: Callable[[bytes], None]) -> Packets | None:
    """The packet cutter that these faults order, if any."""
    if "one_byte" in faults:
        return Packets(one_byte, write)
    if "split" in faults:
        split = faults["split"]
        return Packets(split_at(int(split["at"])), write, gather_s=split["gap_s"])
    return Packets(inside_utf8, write) if "split_utf8" in faults else None
