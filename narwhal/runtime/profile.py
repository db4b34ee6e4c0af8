"""The `narwhal-profile` run: engines, samples file and profile store, wired."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from narwhal import __version__
from narwhal.config.profile_store import ProfileStore
from narwhal.config.samples import SamplesFile
from narwhal.errors import ConfigError, EngineError, IdentityError
from narwhal.measure.fit import TooFewPoints
from narwhal.measure.plan import Wishes, decode_share, too_few
from narwhal.measure.profiler import Effort, Notebook, Profiler
from narwhal.measure.sweep import MeasureFailed
from narwhal.model.engine import EngineProfile
from narwhal.model.settings import FleetConfig
from narwhal.runtime.engine_access import engine_access, engine_auth
from narwhal.runtime.limits import raise_open_files

__all__ = ["ProfileOptions", "ProfileOutcome", "Wishes", "profile"]

MEASURED = "measured"
"""Where `meta` of the store keeps, by engine, what a row was made of."""
KNOWN = "samples_known"
"""Samples that the file had then; a row is made of those that fit its plan and version."""
AGAIN = "again"
"""The row stands, and is to be measured again."""

_FAILURES = (EngineError, IdentityError, MeasureFailed, TooFewPoints, ConfigError)


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """`only`: engines to measure, empty = all. `most_requests`: 0 = the engine's share of connections."""

    samples_path: Path
    only: tuple[str, ...]
    overwrite: bool
    repeats: int
    most_requests: int
    wishes: Wishes
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ProfileOutcome:
    """`failed`: engine → why it has no new row. `skipped`: engines whose row is there already."""

    profiles: tuple[EngineProfile, ...]
    failed: Mapping[str, str]
    skipped: tuple[str, ...]


def profile(config: FleetConfig, options: ProfileOptions, *, tell: Callable[[str], None]) -> ProfileOutcome:
    """Measures, fits, and writes each row when it is there. Raises ConfigError before anything is asked."""
    if problems := too_few(options.wishes, _most(config, options)):
        raise ConfigError(list(problems))
    auth = engine_auth(options.api_key)
    store = ProfileStore(Path(config.profiles.path), config.engines)
    chosen = [spec.iid for spec in config.engines if not options.only or spec.iid in options.only]
    with SamplesFile(options.samples_path, model=config.model, engine_auth=auth) as samples:
        if options.overwrite:
            # A run that ends before its first sample is to go on, too.
            store.note({MEASURED: {**_measured(store), **{iid: {AGAIN: True} for iid in chosen}}})
            samples.drop(chosen)
            todo = chosen
        else:
            todo = [iid for iid in chosen if _is_due(iid, store, samples=samples)]
        run = _Run(config, options, store=store, samples=samples, tell=tell)
        raise_open_files()
        uvloop.run(run.measure(todo))
    skipped = tuple(iid for iid in chosen if iid not in todo)
    return ProfileOutcome(tuple(run.profiles), run.failed, skipped)


def _most(config: FleetConfig, options: ProfileOptions) -> int:
    """The largest batch."""
    return options.most_requests or decode_share(config.serving.max_connections, config.engines)


def _is_due(iid: str, store: ProfileStore, *, samples: SamplesFile) -> bool:
    """An engine without a row, and one of whom a run was stopped: what was known when its row was made is not
    what is known now, or it was to be measured again. A store may have come without its samples."""
    told = _measured(store).get(iid)
    made_of = told if isinstance(told, dict) else {}
    if iid not in store.rows or made_of.get(AGAIN):
        return True
    known = _known(iid, samples)
    return known > 0 and known != made_of.get(KNOWN, made_of.get("samples"))


def _known(iid: str, samples: SamplesFile) -> int:
    """Samples of this engine, of whatever plan and version."""
    return sum(sample.iid == iid for sample in samples.samples)


def _measured(store: ProfileStore) -> Mapping[str, Any]:
    told = store.meta.get(MEASURED)
    return told if isinstance(told, dict) else {}


class _Run:
    """One run over several engines; an engine that cannot be measured does not keep the others off."""

    def __init__(
        self,
        config: FleetConfig,
        options: ProfileOptions,
        *,
        store: ProfileStore,
        samples: SamplesFile,
        tell: Callable[[str], None],
    ) -> None:
        self.profiles: list[EngineProfile] = []
        self.failed: dict[str, str] = {}
        self._config = config
        self._options = options
        self._store = store
        self._samples = samples
        self._tell = tell

    async def measure(self, engines: list[str]) -> None:
        config, options = self._config, self._options
        most = _most(config, options)
        notebook = Notebook(self._samples.samples, self._samples.keep, self._tell)
        async with engine_access(config, api_key=options.api_key, connections=most) as (access, _):
            profiler = Profiler(access, Effort(most, options.repeats, options.wishes), notebook=notebook)
            for iid in engines:
                try:
                    await self._one(profiler, iid)
                except _FAILURES as error:
                    self.failed[iid] = str(error)
                    self._tell(f"{iid}: {error}")

    async def _one(self, profiler: Profiler, iid: str) -> None:
        profile, version, samples = await profiler.profile(iid)
        made_of = {"samples": samples, KNOWN: _known(iid, self._samples), "vllm_version": version}
        meta = {
            "engine_auth": engine_auth(self._options.api_key),
            "narwhal_version": __version__,
            MEASURED: {**_measured(self._store), iid: made_of},
        }
        self._store.merge([profile], meta=meta)
        self.profiles.append(profile)
