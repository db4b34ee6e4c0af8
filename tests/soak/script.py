"""What happens in a soak, and in which order: two sequences that one seed fixes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults.switches import DECODE, SWITCHES, Owed, Switch, legs
from tests.soak.cluster import ENGINES, WAYS

SPARED = frozenset({0, ENGINES // 2})
"""Numbers of a pinned prefill and a pinned decode engine that never get a fault, nor one of their edges:
whatever befalls them is a wrong verdict."""
FAULTY = tuple(number for number in range(ENGINES) if number not in SPARED)
AT_ONCE = 3
"""Engines with a fault at a time; in a storm more."""
STORM_SHARE = 0.08
STORM = 6
SLOW = Switch("tokens ten times slower", DECODE, legs(DECODE, "slow_tokens", factor=10), Owed.KEPT)
SLOW_S = 14.0
"""Long enough for drift to be judged."""
POISON = "hemlock"
"""Whoever asks for it gets a 500 from every engine, sound or not."""
POISONED = [{"fault": "status", "leg": leg, "status": 500, "match": POISON} for leg in ("prefill", "decode")]


@dataclass(frozen=True, slots=True)
class Trouble:
    """One fault: `pause_s` after the one before it, on engine number `engine`, for `lasts_s`.

    `producer`: for a broken edge, the engine whose KV cannot be pulled. `at_once`: wait until fewer engines
    than this have a fault.
    """

    pause_s: float
    engine: int
    switch: Switch
    lasts_s: float
    producer: int
    at_once: int


def troubles(seed: int) -> Iterator[Trouble]:
    """Without end."""
    dice = random.Random(f"troubles {seed}")
    while True:
        engine = dice.choice(FAULTY)
        switch = dice.choice([*SWITCHES, SLOW, SLOW])
        yield Trouble(
            pause_s=dice.uniform(0.2, 2.5),
            engine=engine,
            switch=switch,
            lasts_s=dice.uniform(0.5, 8.0) if switch is not SLOW else SLOW_S,
            producer=dice.choice([number for number in FAULTY if number != engine]),
            at_once=STORM if dice.random() < STORM_SHARE else AT_ONCE,
        )


def takeovers(seed: int) -> Iterator[tuple[float, str]]:
    """(seconds after the last one has settled, way), without end; every way once in each round."""
    dice = random.Random(f"takeovers {seed}")
    while True:
        for way in dice.sample(WAYS, len(WAYS)):
            yield dice.uniform(3.0, 12.0), way


def is_edge(trouble: Trouble) -> bool:
    return bool(trouble.switch.edge)
