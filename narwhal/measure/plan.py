"""Which points a sweep measures. Pure.

Prefill lengths and contexts grow by equal factors, batch sizes double: a profile's error counts relative to
what was measured, so its points spread evenly on a logarithmic scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from narwhal.errors import ConfigError
from narwhal.measure.fit import FEWEST_POINTS
from narwhal.model.engine import EngineSpec, Role
from narwhal.model.sample import Phase, Point

SHORTEST_PREFILL = 64
SHORTEST_CONTEXT = 128
LONGEST_PREFILL = 16384
LONGEST_CONTEXT = 2048
PREFILL_POINTS = 6
CONTEXT_POINTS = 3
ANSWER_ROOM = 256
"""Tokens of an engine's context that are left for what it generates."""
KV_SHARE = 0.8
"""Of the KV cache, at most, in one point: an engine that runs full evicts, and that is another pace."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What an engine can take. `most_requests`: the largest batch to measure; `kv_tokens`: None = unknown."""

    max_model_len: int
    most_requests: int
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asks for instead of the defaults; empty = the defaults."""

    prompt_tokens: tuple[int, ...] = ()
    context_tokens: tuple[int, ...] = ()


def plan(reach: Reach, wishes: Wishes) -> tuple[Point, ...]:
    """Prefill points, then decode points. Raises ConfigError where an engine is too small to be measured."""
    longest = reach.max_model_len - ANSWER_ROOM
    prompts = wishes.prompt_tokens or spread(
        SHORTEST_PREFILL, min(longest, LONGEST_PREFILL), points=PREFILL_POINTS
    )
    contexts = wishes.context_tokens or spread(
        SHORTEST_CONTEXT, min(longest // 2, LONGEST_CONTEXT), points=CONTEXT_POINTS
    )
    room = None if reach.kv_tokens is None else int(reach.kv_tokens * KV_SHARE)
    prefill = [Point(Phase.PREFILL, 1, tokens) for tokens in prompts if tokens <= longest]
    decode = [
        Point(Phase.DECODE, requests, tokens)
        for requests in batches(reach.most_requests)
        for tokens in contexts
        if tokens <= longest and (room is None or requests * (tokens + ANSWER_ROOM) <= room)
    ]
    for found, words in ((prefill, "prompt lengths"), (decode, "decode points")):
        if len(found) < FEWEST_POINTS:
            raise ConfigError(
                f"{len(found)} {words} fit a context of {reach.max_model_len} tokens and "
                f"{room if room is not None else 'unknown'} tokens of KV cache: a fit needs {FEWEST_POINTS}"
            )
    return (*sorted(prefill), *sorted(decode))


def too_few(wishes: Wishes, most_requests: int) -> tuple[str, ...]:
    """Sentences about wishes that make no fit at any engine; empty: they may."""
    found = []
    prompts, contexts = len(wishes.prompt_tokens), len(wishes.context_tokens) or CONTEXT_POINTS
    if 0 < prompts < FEWEST_POINTS:
        found.append(f"--prompt-tokens must be {FEWEST_POINTS} lengths or more, got {prompts}")
    sizes = batches(most_requests)
    if contexts * len(sizes) < FEWEST_POINTS:
        found.append(
            f"--context-tokens and --max-requests must make {FEWEST_POINTS} points or more, got {contexts} "
            f"lengths in batches of {', '.join(map(str, sizes))}"
        )
    return tuple(found)


def spread(low: int, high: int, *, points: int) -> tuple[int, ...]:
    """At most `points` whole numbers from `low` to `high` by equal factors; fewer where they are close."""
    if high <= low:
        return (max(1, high),)
    factor = (high / low) ** (1 / (points - 1))
    return tuple(dict.fromkeys(round(low * factor**step) for step in range(points)))


def batches(most: int) -> Sequence[int]:
    """1, 2, 4... and `most` itself."""
    doubled = [1 << step for step in range(most.bit_length()) if 1 << step < most]
    return [*doubled, most]


def decode_share(max_connections: int, engines: Sequence[EngineSpec]) -> int:
    """The requests that one engine decodes when the router is full: `serving.max_connections` over the
    engines that may take decode legs. What a decode profile has to cover."""
    return -(-max_connections // max(1, sum(map(may_decode, engines))))


def may_decode(spec: EngineSpec) -> bool:
    """Only an engine that is pinned to prefill never does."""
    return spec.role is Role.DECODE or not spec.pin
