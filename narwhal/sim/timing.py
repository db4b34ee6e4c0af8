"""How long a simulated engine takes, flat or by a measured profile (control.md section 1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from narwhal.errors import ConfigError
from narwhal.model.engine import EngineProfile
from narwhal.model.numbers import finite
from narwhal.sim.settings import SimSettings

_COEFFICIENTS = ("ttft_a", "ttft_b", "ttft_c", "tpot_slope", "tpot_intercept")
_OPTIONAL = ("tpot_request_slope",)


class Timing:
    """Prefill seconds and token interval of one engine. Prefills of a profile queue behind each other."""

    __slots__ = ("_busy_until", "_interval_s", "_prefill_s", "_profile")

    def __init__(self, settings: SimSettings) -> None:
        self._profile = settings.profile
        self._prefill_s = settings.prefill_s
        self._interval_s = settings.interval_s
        self._busy_until = 0.0

    def prefill_done_at(self, tokens: int, now: float) -> float:
        """When a prefill of `tokens` prompt tokens (those not cached) that is added now is done."""
        row = self._profile
        if row is None:
            return now + (self._prefill_s if tokens else 0.0)
        seconds = (row.ttft_a * tokens + row.ttft_b) * tokens + row.ttft_c
        self._busy_until = max(now, self._busy_until) + seconds
        return self._busy_until

    def interval_s(self, kv_tokens: int, sequences: int) -> float:
        """Seconds between tokens while `sequences` decode over `kv_tokens` resident tokens."""
        row = self._profile
        if row is None:
            return self._interval_s
        return row.tpot_slope * kv_tokens + row.tpot_request_slope * sequences + row.tpot_intercept


def load_profiles(path: Path) -> dict[str, EngineProfile]:
    """Read a `narwhal.profiles` v1 file: engine ID -> row. Raises ConfigError naming file and field."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not JSON: {error}") from error
    rows = document.get("profiles") if isinstance(document, dict) else None
    if not isinstance(rows, list) or document.get("schema") != "narwhal.profiles":
        raise ConfigError(f"{path}: is not a narwhal.profiles document with a list of profiles")
    profiles: dict[str, EngineProfile] = {}
    for index, row in enumerate(rows):
        profile = _profile(row, f"{path}: profiles[{index}]")
        profiles[profile.iid] = profile
    return profiles


def _profile(row: Any, where: str) -> EngineProfile:
    if not isinstance(row, Mapping) or not isinstance(row.get("iid"), str) or not row["iid"]:
        raise ConfigError(f"{where}.iid: must be a nonempty string")
    for name in (*_COEFFICIENTS, *(key for key in _OPTIONAL if key in row)):
        value = row.get(name)
        if (number := finite(value)) is None or number < 0:
            raise ConfigError(f"{where}.{name}: must be a finite number of at least 0")
    known = {field.name for field in fields(EngineProfile)}
    return EngineProfile(**{key: value for key, value in row.items() if key in known})
