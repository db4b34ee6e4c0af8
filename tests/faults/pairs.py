"""Two engines, two faults: one of a producer beside one of a consumer, and two of one role.

Every chosen fault of one role meets every chosen one of the other, and every switch that there is has one
partner of the other role and one of its own; so has every chosen one itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, cycle, product

from tests.faults.switches import DECODE_SWITCHES, PREFILL_SWITCHES, Switch

Case = tuple[Switch, ...]

ENGINES, MORE_ENGINES = 4, 6
_OF_PREFILL = (
    "refuse connections", "hang before the head", "500", "429, retry after 1 s", "404 to everything",
    "KV handoff missing", "KV handoff of nobody", "core stands still",
)  # fmt: skip
_OF_DECODE = (
    "refuse connections", "500", "429, retry after 1 s", "no first token", "stall after 2 tokens",
    "end without [DONE]", "core dies", "one edge fails",
)  # fmt: skip


def engines_for(case: Case) -> int:
    """How many engines it is played with: one of each role stays sound."""
    return MORE_ENGINES if len({switch.role for switch in case}) < len(case) else ENGINES


def _named(switches: Sequence[Switch], names: Sequence[str]) -> list[Switch]:
    by_name = {switch.name: switch for switch in switches}
    return [by_name[name] for name in names]


_PREFILL, _DECODE = _named(PREFILL_SWITCHES, _OF_PREFILL), _named(DECODE_SWITCHES, _OF_DECODE)


def _ring(switches: Sequence[Switch], *, step: int) -> list[Case]:
    return [(one, switches[(at + step) % len(switches)]) for at, one in enumerate(switches)]


def _in_turn(switches: Sequence[Switch]) -> list[Case]:
    """Neighbours of a list, each once."""
    return list(zip(switches[::2], switches[1::2], strict=True))


CROSSED: list[Case] = list(
    dict.fromkeys([*product(_PREFILL, _DECODE), *zip(cycle(PREFILL_SWITCHES), DECODE_SWITCHES)])
)
"""One of each role."""
ALIKE: list[Case] = list(
    chain.from_iterable(
        [*_ring(every, step=7), *((one, one) for one in chosen if not one.edge)]
        for every, chosen in ((PREFILL_SWITCHES, _PREFILL), (DECODE_SWITCHES, _DECODE))
    )
)
"""Two of one role. An edge that fails twice would be a producer that fails with two consumers."""
LEAN: list[Case] = [*zip(_PREFILL, _DECODE, strict=True), *_in_turn(_PREFILL), *_in_turn(_DECODE)]
"""Each chosen fault once with the other role, once with its own: for tests."""
