"""The profile store (`narwhal.profiles` v1, control.md section 1): measured cost of each engine.

Every problem is told at once, each with file, engine and field. A store that is not there is no problem:
placement then goes by resident work, and a warning says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from narwhal.config.json_text import Spoiled, parse
from narwhal.config.rules import (
    AT_LEAST_ONE,
    NOT_BLANK,
    NOT_NEGATIVE,
    POSITIVE,
    REQUIRED,
    UNSET,
    Field,
    Kind,
    Rule,
    shown,
)
from narwhal.errors import ConfigError
from narwhal.model.engine import EngineProfile, EngineSpec

SCHEMA: Final = "narwhal.profiles"
VERSION: Final = 1


def _number(name: str, doc: str, *, rule: Rule = NOT_NEGATIVE, default: Any = REQUIRED) -> Field:
    return Field(name, Kind.NUMBER, default, doc, rule)


def _integer(name: str, doc: str, *, rule: Rule = NOT_NEGATIVE, default: Any = 0) -> Field:
    return Field(name, Kind.INTEGER, default, doc, rule)


FIELDS: Final = (
    Field("iid", Kind.TEXT, REQUIRED, "engine ID", NOT_BLANK),
    Field("generation_digest", Kind.TEXT, UNSET, "what the engine generated when it was measured"),
    _number("ttft_a", "prefill seconds per prompt token squared"),
    _number("ttft_b", "prefill seconds per prompt token"),
    _number("ttft_c", "prefill seconds of any prompt"),
    _number("tpot_slope", "seconds per resident KV token", rule=POSITIVE),
    _number("tpot_request_slope", "seconds per active sequence", default=0.0),
    _number("tpot_intercept", "idle token interval in seconds"),
    _integer("kv_capacity_tokens", "KV tokens that fit", rule=AT_LEAST_ONE, default=UNSET),
    _integer("decode_min_requests", "fewest sequences measured"),
    _integer("decode_max_requests", "most sequences measured"),
    _integer("decode_min_kv_tokens", "fewest KV tokens measured"),
    _integer("decode_max_kv_tokens", "most KV tokens measured"),
    _number("decode_fit_mape", "error of the decode fit, a share", default=0.0),
    _number("decode_cv_mape", "error of the decode fit in cross-validation, a share", default=0.0),
)
"""One row of the store. `path` is the name inside the row."""

_ROW_PATH: Final = re.compile(r"^profiles\[(\d+)\]\.")

_ORDERED: Final = (
    ("decode_min_requests", "decode_max_requests"),
    ("decode_min_kv_tokens", "decode_max_kv_tokens"),
)


@dataclass(frozen=True, slots=True)
class ProfileReading:
    """`profiles`: engine ID to its profile, for engines of the fleet only; empty without a store.

    `engine_auth` is what the store says of its measurements ("" when it does not). `warnings` may be
    empty.
    """

    profiles: Mapping[str, EngineProfile]
    engine_auth: str
    warnings: tuple[str, ...]


def read_profiles(path: str, engines: Sequence[EngineSpec]) -> ProfileReading:
    """Reads the store at `path`. Raises ConfigError with every problem of a store that is there."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return ProfileReading({}, "", (f"{path}: no profile store; placement goes by resident work",))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    reader = _Reader(path)
    reader.read(data)
    if reader.problems:
        raise ConfigError(reader.problems)
    return reader.reading(engines)


class _Reader:
    """Collects rows, problems and warnings of one store."""

    def __init__(self, path: str) -> None:
        self.problems: list[str] = []
        self._path = path
        self._warnings: list[str] = []
        self._rows: dict[str, EngineProfile] = {}
        self._engine_auth = ""

    def read(self, data: bytes) -> None:
        try:
            document, oddities = parse(data)
        except ConfigError as error:
            self.problems += [f"{self._path}: {problem}" for problem in error.problems]
            return
        if not isinstance(document, dict):
            self._add("must be an object")
            return
        self._read_head(document)
        rows = document.get("profiles")
        if not isinstance(rows, list):
            self._add(f"profiles must be a list, got {shown(rows)}")
            return
        for oddity in oddities:
            self._add(_ROW_PATH.sub(lambda match: f"{_named(rows, int(match[1]))} ", oddity))
        for index, row in enumerate(rows):
            self._read_row(index, row)

    def reading(self, engines: Sequence[EngineSpec]) -> ProfileReading:
        wanted = [spec.iid for spec in engines]
        missing = [iid for iid in wanted if iid not in self._rows]
        if missing:
            self._warnings.append(
                f"{self._path}: no profile for {', '.join(missing)}; placement goes by resident work"
            )
        if strangers := sorted(set(self._rows) - set(wanted)):
            self._warnings.append(f"{self._path}: not in this fleet: {', '.join(strangers)}")
        profiles = {iid: self._rows[iid] for iid in wanted if iid in self._rows}
        return ProfileReading(profiles, self._engine_auth, tuple(self._warnings))

    def _read_head(self, document: Mapping[str, Any]) -> None:
        if document.get("schema") != SCHEMA:
            self._add(f"schema must be {shown(SCHEMA)}, got {shown(document.get('schema'))}")
        version = document.get("schema_version")
        if version != VERSION or type(version) is not int:
            self._add(f"schema_version must be {VERSION}, got {shown(version)}")
        meta = document.get("meta")
        if meta is not None and not isinstance(meta, dict):
            self._add(f"meta must be an object, got {shown(meta)}")
        elif meta and isinstance(meta.get("engine_auth"), str):
            self._engine_auth = meta["engine_auth"]

    def _read_row(self, index: int, row: Any) -> None:
        if not isinstance(row, dict):
            self._add(f"profiles[{index}] must be an object, got {shown(row)}")
            return
        iid = row.get("iid")
        where = _name(index, row)
        problems = list(_problems(row))
        if isinstance(iid, str) and iid in self._rows:
            problems.append("iid is given twice")
        for problem in problems:
            self._add(f"{where} {problem}")
        known = {field.name for field in FIELDS}
        if unknown := sorted(set(row) - known):
            self._warnings.append(f"{self._path}: {where} unknown and not used: {', '.join(unknown)}")
        if not problems:
            self._rows[row["iid"]] = _profile(row)

    def _add(self, problem: str) -> None:
        self.problems.append(f"{self._path}: {problem}")


def _named(rows: list[Any], index: int) -> str:
    row = rows[index] if index < len(rows) else None
    return _name(index, row if isinstance(row, dict) else {})


def _name(index: int, row: Mapping[str, Any]) -> str:
    """The engine of a row, or its place in the list while it has no ID."""
    iid = row.get("iid")
    return f"{iid}:" if isinstance(iid, str) and iid.strip() else f"profiles[{index}]:"


def _problems(row: Mapping[str, Any]) -> Iterator[str]:
    for field in FIELDS:
        value = row.get(field.name)
        if isinstance(value, Spoiled):
            continue
        if value is None:
            if field.default is REQUIRED:
                yield f"{field.name} is required"
        elif problem := field.problem(value):
            yield f"{field.name} {problem}"
    for low, high in _ORDERED:
        if _is_count(row.get(low)) and _is_count(row.get(high)) and row[low] > row[high]:
            yield f"{low} must be ≤ {high}, got {row[low]} and {row[high]}"


def _is_count(value: Any) -> bool:
    return type(value) is int


def _profile(row: Mapping[str, Any]) -> EngineProfile:
    given = {field.name: row[field.name] for field in FIELDS if row.get(field.name) is not None}
    return EngineProfile(**given)
