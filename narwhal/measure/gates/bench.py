"""What the gates share: the fleet, its engines, and what earlier gates have learnt."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from narwhal.errors import EngineError, EngineRefused, EngineTimeout, IdentityError
from narwhal.measure.gates.verdict import Finding, failed, skipped
from narwhal.measure.legs import Legs
from narwhal.measure.prompts import fresh_prompt
from narwhal.model.engine import EngineProfile, EngineSpec
from narwhal.model.settings import FleetConfig
from narwhal.ports import Identities

PROMPT_WORDS = 60
ANSWER_TOKENS = 24
NOT_REACHED = "not reached"
"""Or not any more: it let a leg time out."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is tried. `kv` False leaves out what hands KV over; `ring`: every engine to the next one."""

    kv: bool = True
    ring: bool = False
    repeats: int = 3


@dataclass(frozen=True, slots=True)
class Store:
    """The profile store as it was read. `there`: whether there is such a file.

    `problems`: sentences of a store that cannot be loaded; then there are no `profiles`.
    """

    path: str
    there: bool
    profiles: Mapping[str, EngineProfile] = field(default_factory=dict)
    engine_auth: str = ""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pace:
    """One request as a client would have seen it."""

    ttft_s: float
    tpot_s: float


@dataclass(slots=True)
class Bench:
    """`progress` is called with how many findings of a gate are there, and of how many.

    `reached` and `paces` grow as the gates run: engines that answered, and times by engine or edge. An engine
    that let a leg time out leaves `reached`: each further one would cost as long again.
    """

    config: FleetConfig
    legs: Legs
    identities: Identities
    store: Store
    extent: Extent
    engine_auth: str
    progress: Callable[[int, int], None]
    reached: set[str] = field(default_factory=set)
    paces: dict[str, list[Pace]] = field(default_factory=lambda: defaultdict(list))

    @property
    def engines(self) -> Sequence[EngineSpec]:
        return self.config.engines

    @property
    def timeout_s(self) -> float:
        return self.config.engine.health_timeout_s

    def met(self, error: Exception) -> None:
        """What a gate ended with on an engine."""
        if isinstance(error, EngineTimeout):
            self.reached.discard(error.iid)

    def prompt(self) -> str:
        """One that no engine has seen before."""
        return fresh_prompt(os.urandom(8).hex(), PROMPT_WORDS)


Judge = Callable[[Bench, str], Awaitable[Finding]]


async def each(bench: Bench, judge: Judge, *, engines: Sequence[str], at_once: bool) -> list[Finding]:
    """A finding for each of these engines, in their order; those that were not reached are skipped.

    `at_once` False: one after the other, where times are measured.
    """
    done = count(1)

    async def one(iid: str) -> Finding:
        finding = await _judged(bench, judge, iid=iid)
        bench.progress(next(done), len(engines))
        return finding

    asked = [one(iid) for iid in engines]
    return list(await asyncio.gather(*asked)) if at_once else [await finding for finding in asked]


async def _judged(bench: Bench, judge: Judge, *, iid: str) -> Finding:
    if iid not in bench.reached:
        return skipped(iid, NOT_REACHED)
    try:
        return await judge(bench, iid)
    except (EngineError, IdentityError) as error:
        bench.met(error)
        return failed(iid, words(error))


def words(error: Exception) -> str:
    """An engine's error for the operator: its own message behind the status, where it told one; how long
    the first token was waited for, which is not always what the fleet file says."""
    if isinstance(error, EngineRefused) and isinstance(message := error.error.get("message"), str):
        return f"{error}: {message[:300]}"
    if isinstance(error, EngineTimeout) and error.kind == "first_token":
        return f"{error} ({error.limit_s:g} s)"
    return str(error)
