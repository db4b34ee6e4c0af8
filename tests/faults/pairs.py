"""Two engines, two faults: every chosen fault of a producer beside every chosen fault of a consumer."""

from __future__ import annotations

from itertools import product

from tests.faults.switches import DECODE_SWITCHES, PREFILL_SWITCHES, Switch

_OF_PREFILL = (
    "refuse connections", "hang before the head", "500", "429, retry after 1 s", "404 to everything",
    "KV handoff missing", "KV handoff of nobody", "core stands still",
)  # fmt: skip
_OF_DECODE = (
    "refuse connections", "500", "429, retry after 1 s", "no first token", "stall after 2 tokens",
    "end without [DONE]", "core dies", "one edge fails",
)  # fmt: skip


def _named(switches: list[Switch], names: tuple[str, ...]) -> list[Switch]:
    by_name = {switch.name: switch for switch in switches}
    return [by_name[name] for name in names]


def _lean() -> list[tuple[Switch, Switch]]:
    """Each chosen fault once: for tests."""
    return list(zip(_named(PREFILL_SWITCHES, _OF_PREFILL), _named(DECODE_SWITCHES, _OF_DECODE), strict=True))


LEAN = _lean()
PAIRS = list(product(_named(PREFILL_SWITCHES, _OF_PREFILL), _named(DECODE_SWITCHES, _OF_DECODE)))
