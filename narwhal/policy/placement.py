"""Choosing one engine for one leg (serving.md section 1.4, control.md section 2). Pure, no state.

Order of candidates: those that keep the SLO before those that do not; for prefill, engines without
resident decode work before those with; lowest cost; within 1% of it the least recently chosen; engine ID.
The penalty of an engine on probation counts for the order and never as a miss of the target: no exclusion.
`loads` must be sorted by engine ID, which makes the last tie-break free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter

from narwhal.policy.cost import EngineLoad

TIE = 1.01
"""Costs within 1% of the lowest count as equal."""

_last_chosen = attrgetter("last_chosen")
_prefill_penalty = attrgetter("prefill_penalty")
_decode_penalty = attrgetter("decode_penalty")


Pick = tuple[EngineLoad, float, bool]
"""The engine, its cost, and whether every candidate would miss the target (then it is the cheapest)."""


def pick_prefill(loads: Sequence[EngineLoad], tokens: int, *, ttft_s: float) -> Pick:
    """The engine for a prompt of `tokens`. `loads` is not empty; `ttft_s` is inf without profiles."""
    quiet = [e for e in loads if not e.decodes]
    if not quiet:
        return _prefill_pick(loads, tokens, limit=ttft_s)
    pick = _, _, misses = _prefill_pick(quiet, tokens, limit=ttft_s)
    if not misses or len(quiet) == len(loads):
        return pick
    relief = _, _, misses = _prefill_pick([e for e in loads if e.decodes], tokens, limit=ttft_s)
    return pick if misses else relief


def pick_decode(loads: Sequence[EngineLoad], kv_tokens: int, *, limit: float) -> Pick:
    """The engine for a sequence of `kv_tokens`. `loads` is not empty; `limit` is inf without profiles."""
    # EngineLoad.decode_share and its penalty written out: this line runs once per engine and request.
    costs = [(e.placed_kv + kv_tokens) / e.room for e in loads]
    return _cheapest(loads, costs, limit=limit, penalty=_decode_penalty)


def least_prefill_work(loads: Sequence[EngineLoad]) -> EngineLoad:
    """The engine with the least resident prefill work; among equals the least recently chosen."""
    lowest = min([e.prefill_work for e in loads])
    return min([e for e in loads if e.prefill_work <= lowest], key=_last_chosen)


def _prefill_pick(loads: Sequence[EngineLoad], tokens: int, *, limit: float) -> Pick:
    # EngineLoad.prefill_seconds and its penalty written out, as above.
    costs = [e.prefill_work + (e.a * tokens + e.b) * tokens + e.placed_c for e in loads]
    return _cheapest(loads, costs, limit=limit, penalty=_prefill_penalty)


def _cheapest(
    loads: Sequence[EngineLoad], costs: list[float], *, limit: float, penalty: Callable[[EngineLoad], float]
) -> Pick:
    lowest = min(costs)
    if lowest > limit:
        # Whoever misses the target by its penalty alone keeps it.
        kept = [(e, cost) for e, cost in zip(loads, costs, strict=True) if cost - penalty(e) <= limit]
        if kept:
            engines, their_costs = zip(*kept, strict=True)
            return _cheapest(engines, list(their_costs), limit=math.inf, penalty=penalty)
    bar = lowest * TIE
    ties = [e for e, cost in zip(loads, costs, strict=True) if cost <= bar]
    return min(ties, key=_last_chosen), lowest, lowest > limit
