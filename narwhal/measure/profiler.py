"""One engine from its first question to its profile; what was measured before is not measured again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from narwhal.errors import ConfigError, IdentityError
from narwhal.measure.digest import generation_digest
from narwhal.measure.fit import profile_of
from narwhal.measure.legs import Access, Legs
from narwhal.measure.plan import Reach, Wishes, plan
from narwhal.measure.sweep import Sweep
from narwhal.model.engine import EngineProfile
from narwhal.model.sample import Point, Sample


@dataclass(frozen=True, slots=True)
class Effort:
    """`most_requests`: the largest batch; `repeats`: measurements of each point; the median counts."""

    most_requests: int
    repeats: int
    wishes: Wishes


@dataclass(frozen=True, slots=True)
class Notebook:
    """Where samples go. `known`: those of earlier runs; `keep` a new one; `tell` a line for whoever waits."""

    known: Iterable[Sample]
    keep: Callable[[Sample], None]
    tell: Callable[[str], None]


class Profiler:
    """Measures engines one after the other: they may share a device, a host or a network."""

    def __init__(self, access: Access, effort: Effort, *, notebook: Notebook) -> None:
        self._access = access
        self._effort = effort
        self._notebook = notebook
        self._legs = Legs(access)
        self._run = os.urandom(4).hex()

    async def profile(self, iid: str) -> tuple[EngineProfile, str, int]:
        """The engine's profile, its vLLM version and how many samples it is made of.

        Raises EngineError, IdentityError, MeasureFailed, TooFewPoints, and ConfigError for an engine that
        is too small to be measured.
        """
        version = await self._legs.version(iid)
        length = await self._longest(iid)
        capacity = await self._legs.kv_capacity(iid)
        points = plan(Reach(length, self._effort.most_requests, capacity), self._effort.wishes)
        found = self._usable(iid, version, points=points)
        sweep = Sweep(self._legs, iid, version=version, max_model_len=length)
        await self._fill(sweep, found, todo=self._missing(found, points))
        digest = await generation_digest(self._legs, iid)
        profile = profile_of(iid, found, kv_capacity_tokens=capacity, generation_digest=digest)
        return profile, version, len(found)

    async def _longest(self, iid: str) -> int:
        models = await self._legs.models(iid)
        if self._access.model not in models:
            names = ", ".join(sorted(models)) or "nothing"
            raise ConfigError(f"{iid} serves {names}, the fleet's model is {self._access.model}")
        length = models[self._access.model]
        if length is None:
            raise IdentityError(f"{iid} tells no max_model_len")
        return length

    def _usable(self, iid: str, version: str, *, points: tuple[Point, ...]) -> list[Sample]:
        """What earlier runs measured of these points on this version of the engine."""
        mine = [sample for sample in self._notebook.known if sample.iid == iid]
        usable = [sample for sample in mine if sample.vllm_version == version and sample.point in points]
        if len(usable) < len(mine):
            self._notebook.tell(
                f"{iid}: {len(mine) - len(usable)} samples of another vLLM version or plan are not used"
            )
        return usable

    def _missing(self, found: list[Sample], points: tuple[Point, ...]) -> list[tuple[Point, int]]:
        """Round after round: a machine that slows down for a while harms one repeat of many points."""
        done = {(sample.point, sample.repeat) for sample in found}
        rounds = range(self._effort.repeats)
        return [(point, repeat) for repeat in rounds for point in points if (point, repeat) not in done]

    async def _fill(self, sweep: Sweep, found: list[Sample], *, todo: list[tuple[Point, int]]) -> None:
        if not todo:
            return
        await sweep.calibrate(self._run)
        for number, (point, repeat) in enumerate(todo, 1):
            sample = await sweep.measure(point, repeat)
            found.append(sample)
            self._notebook.keep(sample)
            self._notebook.tell(
                f"{sample.iid} {number}/{len(todo)}: {point.words}: {sample.seconds * 1000:.2f} ms"
            )
