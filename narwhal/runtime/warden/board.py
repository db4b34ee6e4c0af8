"""Memory that the router writes and its warden reads, also after the router's death by SIGKILL.

One anonymous shared mapping, made before the fork. A write costs about a microsecond and no system call.
The writer may die between any two instructions, so nothing is readable before it is whole: each part is
written first, then one aligned 8-byte word that makes it count.

| part | makes it count |
| --- | --- |
| heartbeat | itself |
| who the router is | its length |
| tokens, a ring of four with the floor each | how many were ever told |
| counters, two copies in turn | how many times they were written |

One thread writes a part: tokens the keeper's, all else the main one.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import fields
from struct import Struct

from narwhal.model.legacy import Legacy, ToldToken
from narwhal.model.request import Counters

_WORD = Struct("@Q")
_NAMES = tuple(field.name for field in fields(Counters))
_COUNTERS = Struct(f"@{len(_NAMES)}Q")
_TOKEN = Struct("@Q64s")
_NAME_BYTES = 256

_BEATS, _TOLD, _COUNTED, _NAMED = (8 * n for n in range(4))
_NAME_AT = 64
_RING_AT = _NAME_AT + _NAME_BYTES
_RING = 4
_COPIES_AT = _RING_AT + _RING * _TOKEN.size
KEPT_TOKENS = 2


class Board:
    """Both sides hold one; see the module for who may call what."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._latest = ""

    # --- the router writes -----------------------------------------------------------------------

    def name(self, router_id: str, run: str) -> None:
        """Once, before anything is told to the store. Router ID and run hold no blank."""
        text = f"{router_id} {run}".encode()
        self._memory[_NAME_AT : _NAME_AT + len(text)] = text
        self._put(_NAMED, len(text))

    def beat(self) -> None:
        self._put(_BEATS, self.beats + 1)

    def rest(self) -> None:
        """No loop runs any more: silence means nothing from here on."""
        self._put(_BEATS, 0)

    def tell(self, token: str, floor: int) -> None:
        """Before the acquire is sent. The same token again is the same acquire, tried again."""
        if token == self._latest:
            return
        told = self._word(_TOLD)
        _TOKEN.pack_into(self._memory, _RING_AT + told % _RING * _TOKEN.size, floor, token.encode())
        self._put(_TOLD, told + 1)
        self._latest = token

    def count(self, counters: Iterable[int]) -> None:
        """Absolute, in the order of `Counters`."""
        written = self._word(_COUNTED) + 1
        _COUNTERS.pack_into(self._memory, _COPIES_AT + (written & 1) * _COUNTERS.size, *counters)
        self._put(_COUNTED, written)

    # --- the warden reads ------------------------------------------------------------------------

    @property
    def beats(self) -> int:
        return self._word(_BEATS)

    def legacy(self) -> Legacy:
        """What counts by now; whole once the router has ended."""
        length, copy = self._word(_NAMED), self._word(_COUNTED) & 1
        router_id, _, run = self._memory[_NAME_AT : _NAME_AT + length].decode().partition(" ")
        counts = _COUNTERS.unpack_from(self._memory, _COPIES_AT + copy * _COUNTERS.size)
        return Legacy(router_id, run, Counters(*counts), self._tokens())

    def _tokens(self) -> tuple[ToldToken, ...]:
        told = self._word(_TOLD)
        newest_first = range(told - 1, max(told - KEPT_TOKENS, 0) - 1, -1)
        return tuple(self._told(at % _RING) for at in newest_first)

    def _told(self, slot: int) -> ToldToken:
        floor, token = _TOKEN.unpack_from(self._memory, _RING_AT + slot * _TOKEN.size)
        return ToldToken(token.rstrip(b"\0").decode(), floor)

    def _word(self, at: int) -> int:
        word: int = _WORD.unpack_from(self._memory, at)[0]
        return word

    def _put(self, at: int, word: int) -> None:
        _WORD.pack_into(self._memory, at, word)
