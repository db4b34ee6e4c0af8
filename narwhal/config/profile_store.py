"""Writes the profile store (`narwhal.profiles` v1) that `profiles.py` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from narwhal.atomic_file import replace_file
from narwhal.config.json_text import parse
from narwhal.config.profiles import SCHEMA, VERSION, read_profiles
from narwhal.errors import ConfigError
from narwhal.model.engine import EngineProfile, EngineSpec

MODE = 0o644


class ProfileStore:
    """The store at `path` as it is now. Raises ConfigError for one that cannot be loaded.

    `rows`: engine ID to the row as it stands in the file, engines of other fleets too; annotations are
    dropped. `meta`: what the store says of its making, may be empty. `engine_auth`: of that, how engines
    were reached, "" when it does not say.
    """

    def __init__(self, path: Path, engines: Sequence[EngineSpec]) -> None:
        self.path = path
        self.engine_auth = read_profiles(str(path), engines).engine_auth
        self.meta: dict[str, Any] = {}
        self.rows: dict[str, Mapping[str, Any]] = {}
        if path.exists():
            document, _ = parse(path.read_bytes())
            self.meta = document.get("meta") or {}
            self.rows = {row["iid"]: row for row in document["profiles"]}

    def merge(self, profiles: Sequence[EngineProfile], *, meta: Mapping[str, Any]) -> None:
        """Replaces the rows of these engines, keeps the others, and writes the whole atomically.

        Raises ConfigError where rows that stay were measured under another auth mode (their times hold
        checks that the new ones do not, or the other way round), and for a file that cannot be written.
        """
        measured = {profile.iid: _row(profile) for profile in profiles}
        staying = sorted(set(self.rows) - set(measured))
        if staying and self.engine_auth not in ("", meta["engine_auth"]):
            raise ConfigError(
                f"{self.path}: {', '.join(staying)} were measured with engine_auth {self.engine_auth}, this "
                f"run with {meta['engine_auth']}: measure them too, or write another store"
            )
        self.rows = {**self.rows, **measured}
        self._write({**self.meta, **meta})

    def note(self, meta: Mapping[str, Any]) -> None:
        """Writes that of a store with rows; one without has nothing to be told of. Raises ConfigError."""
        if self.rows:
            self._write({**self.meta, **meta})

    def _write(self, meta: dict[str, Any]) -> None:
        self.meta = meta
        document = {
            "schema": SCHEMA,
            "schema_version": VERSION,
            "meta": self.meta,
            "profiles": list(self.rows.values()),
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(document, indent=2, allow_nan=False) + "\n"
            replace_file(self.path, text.encode(), mode=MODE)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error.strerror or error}") from None


def _row(profile: EngineProfile) -> dict[str, Any]:
    return {name: value for name, value in asdict(profile).items() if value is not None}
