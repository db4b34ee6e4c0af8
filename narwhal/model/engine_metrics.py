"""What an engine's `/metrics` (Prometheus text) tell of its work and its KV cache. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from narwhal.model.numbers import MOST_EXACT

RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
CACHE: Final = "vllm:cache_config_info"

_WHOLE: Final = re.compile(r"[0-9]{1,12}")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Requests inside one engine, whoever sent them."""

    running: int
    waiting: int

    @property
    def idle(self) -> bool:
        return self.running == self.waiting == 0


def read_load(body: bytes) -> EngineLoad | None:
    """None where the engine tells no such series."""
    running, waiting = (_total(body, name) for name in (RUNNING, WAITING))
    return None if running is None or waiting is None else EngineLoad(running, waiting)


def read_kv_capacity(body: bytes) -> int | None:
    """Tokens that fit into the KV cache (the sum over an engine's cores); None where it is not told."""
    tokens = 0
    for labels, _ in _series(body, CACHE):
        told = dict(_LABEL.findall(labels))
        blocks, size = told.get("num_gpu_blocks", ""), told.get("block_size", "")
        if _WHOLE.fullmatch(blocks) and _WHOLE.fullmatch(size):
            tokens += int(blocks) * int(size)
    return tokens or None


def _total(body: bytes, name: str) -> int | None:
    values = []
    for _, value in _series(body, name):
        try:
            number = float(value)
        except ValueError:
            return None
        if not 0 <= number <= MOST_EXACT:
            return None
        values.append(int(number))
    return sum(values) if values else None


def _series(body: bytes, name: str) -> Iterator[tuple[str, str]]:
    """Labels (as text) and value of each series of that name. No label that we read holds a brace."""
    for line in body.decode("utf-8", "replace").splitlines():
        if line.startswith(name):
            head, _, rest = line.rpartition("}") if "}" in line else line.partition(" ")
            found, _, labels = head.partition("{")
            if found == name:
                yield labels, rest.split()[0] if rest.split() else ""
