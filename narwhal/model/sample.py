"""What `narwhal-profile` measures: one sample is one measurement of one planned point."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Which half of a profile a point belongs to."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One place of a sweep: `requests` prompts of about `tokens` tokens each, at once.

    A prefill point has one request. The count that engines make of a prompt is in its samples.
    """

    phase: Phase
    requests: int
    tokens: int

    @property
    def words(self) -> str:
        if self.phase is Phase.PREFILL:
            return f"prefill of {self.tokens} tokens"
        return f"decode of {self.requests} x {self.tokens} tokens"


@dataclass(frozen=True, slots=True)
class Sample:
    """`tokens`: prompt tokens of a prefill, resident KV tokens of all requests of a decode.

    `seconds`: of the prefill, or between two tokens of one stream. `vllm_version`: what was measured.
    """

    iid: str
    point: Point
    repeat: int
    tokens: int
    seconds: float
    vllm_version: str
