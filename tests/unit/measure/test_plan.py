"""Which points a sweep measures."""

from __future__ import annotations

import pytest

from narwhal.errors import ConfigError
from narwhal.measure.plan import Reach, Wishes, batches, decode_share, plan, spread, too_few
from narwhal.model.engine import EngineSpec, Role
from narwhal.model.sample import Phase

NONE = Wishes()


def test_batches_double_up_to_the_largest() -> None:
    assert list(batches(1)) == [1]
    assert list(batches(8)) == [1, 2, 4, 8]
    assert list(batches(100)) == [1, 2, 4, 8, 16, 32, 64, 100]


def test_lengths_grow_by_equal_factors() -> None:
    assert spread(64, 16384, points=5) == (64, 256, 1024, 4096, 16384)
    assert spread(64, 66, points=5) == (64, 65, 66)
    assert spread(64, 60, points=5) == (60,)


def test_a_plan_covers_prompts_batches_and_contexts() -> None:
    points = plan(Reach(32768, 4), NONE)
    prefill = [point.tokens for point in points if point.phase is Phase.PREFILL]
    decode = [(point.requests, point.tokens) for point in points if point.phase is Phase.DECODE]
    assert (prefill[0], prefill[-1], len(prefill)) == (64, 16384, 6)
    assert decode == [(m, n) for m in (1, 2, 4) for n in (128, 512, 2048)]


@pytest.mark.parametrize(
    ("wishes", "most", "flags"),
    [
        (NONE, 2, []),
        (Wishes((64, 65, 66, 67), (128,)), 8, []),
        (Wishes((64, 512)), 2, ["--prompt-tokens"]),
        (Wishes(context_tokens=(128,)), 4, ["--context-tokens"]),
        (NONE, 1, ["--context-tokens"]),
        (Wishes((64,), (128,)), 1, ["--prompt-tokens", "--context-tokens"]),
    ],
)
def test_wishes_that_make_a_fit_at_no_engine_are_told_by_their_flags(
    wishes: Wishes, most: int, flags: list[str]
) -> None:
    assert [said.split()[0] for said in too_few(wishes, most)] == flags


def test_nothing_is_longer_than_the_engines_context() -> None:
    points = plan(Reach(1024, 4), NONE)
    assert max(point.tokens for point in points if point.phase is Phase.PREFILL) == 768
    assert max(point.tokens for point in points if point.phase is Phase.DECODE) == 384


def test_no_point_fills_the_kv_cache() -> None:
    points = plan(Reach(32768, 64, kv_tokens=40_000), NONE)
    resident = [point.requests * point.tokens for point in points if point.phase is Phase.DECODE]
    assert max(resident) <= 32_000
    assert max(point.requests for point in points) == 64


def test_wishes_replace_the_defaults() -> None:
    points = plan(Reach(32768, 2), Wishes(prompt_tokens=(400, 100, 200, 300), context_tokens=(50, 60)))
    assert [point.tokens for point in points] == [100, 200, 300, 400, 50, 60, 50, 60]


@pytest.mark.parametrize(
    ("reach", "said"),
    [
        (Reach(300, 8), "1 prompt lengths fit a context of 300 tokens"),
        (Reach(32768, 64, kv_tokens=600), "1 decode points fit"),
        (Reach(32768, 1), "3 decode points fit a context of 32768 tokens and unknown tokens of KV cache"),
    ],
)
def test_an_engine_that_is_too_small_is_told(reach: Reach, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan(reach, NONE)


def test_the_share_is_of_those_that_may_decode() -> None:
    fleet = [
        EngineSpec("e0", "", Role.PREFILL, pin=True),
        EngineSpec("e1", "", Role.PREFILL),
        EngineSpec("e2", "", Role.DECODE, pin=True),
        EngineSpec("e3", "", Role.DECODE),
    ]
    assert decode_share(512, fleet) == 171
    assert decode_share(512, fleet[:1]) == 512
