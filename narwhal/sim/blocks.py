"""KV blocks of one simulated engine, and the prefills that it holds for a consumer.

Contents are modelled by a mark per block (whose prompt wrote it last), so a consumer that reads blocks
after their lease gets what a real one gets: the right content, or silently somebody else's.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_CACHED_PROMPTS = 4096


class BlockPool:
    """Blocks 1..total (0 is the null block). The longest free block is reused first."""

    def __init__(self, total: int, block_tokens: int) -> None:
        self.total = total
        self._block_tokens = block_tokens
        self._free: deque[int] = deque(range(1, total + 1))
        self._marks: list[int | None] = [None] * (total + 1)

    @property
    def used(self) -> int:
        return self.total - len(self._free)

    def needed(self, tokens: int) -> int:
        """Blocks for that many tokens, at least one."""
        return max(1, -(-tokens // self._block_tokens))

    def allocate(self, count: int, mark: int) -> tuple[int, ...] | None:
        """Take and mark `count` blocks; None when there are not that many."""
        if count > len(self._free):
            return None
        blocks = tuple(self._free.popleft() for _ in range(count))
        for block in blocks:
            self._marks[block] = mark
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Free blocks; what they hold stays until somebody else writes there."""
        self._free.extend(blocks)

    def hold_mark(self, blocks: Sequence[int], mark: int) -> bool:
        """Whether every block exists and still has this content."""
        return all(0 < block <= self.total and self._marks[block] == mark for block in blocks)


@dataclass(frozen=True, slots=True)
class Held:
    """One finished prefill whose blocks wait for their consumer until `expires_at` (loop time)."""

    request_id: str
    blocks: tuple[int, ...]
    held_at: float
    expires_at: float


class HandoffLedger:
    """Prefills held for a consumer, oldest first; all have the same lease."""

    def __init__(self, pool: BlockPool, lease_s: float) -> None:
        self._pool = pool
        self._lease_s = lease_s
        self._held: OrderedDict[str, Held] = OrderedDict()
        self.pulled = 0
        self.expired = 0

    def __len__(self) -> int:
        return len(self._held)

    def held(self) -> tuple[Held, ...]:
        return tuple(self._held.values())

    def hold(self, request_id: str, blocks: tuple[int, ...], *, now: float) -> Held:
        entry = Held(request_id, blocks, now, now + self._lease_s)
        self._held[request_id] = entry
        return entry

    def consume(self, request_id: str) -> bool:
        """The consumer has read (or refused) it: free its blocks. False when it is not held (any more)."""
        entry = self._held.pop(request_id, None)
        if entry is None:
            return False
        self._pool.release(entry.blocks)
        self.pulled += 1
        return True

    def expire(self, now: float) -> float | None:
        """Free what is over its lease; when the next one is due, None when nothing is held."""
        while self._held:
            entry = next(iter(self._held.values()))
            if entry.expires_at > now:
                return entry.expires_at
            del self._held[entry.request_id]
            self._pool.release(entry.blocks)
            self.expired += 1
        return None


class PrefixCache:
    """Which whole prompts an engine still has computed, the latest 4,096 of them."""

    def __init__(self) -> None:
        self._marks: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, mark: int) -> bool:
        return mark in self._marks

    def remember(self, mark: int) -> None:
        self._marks[mark] = None
        self._marks.move_to_end(mark)
        if len(self._marks) > _CACHED_PROMPTS:
            self._marks.popitem(last=False)

    def clear(self) -> None:
        self._marks.clear()
