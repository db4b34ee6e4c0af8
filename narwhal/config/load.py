"""From a fleet file to a FleetConfig: reads, checks, builds; all problems at once, one line each."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, get_type_hints

from narwhal.config.check import BUILT_IN_CONNECTORS, BUILT_IN_DIALECTS, check
from narwhal.config.json_text import parse
from narwhal.config.relations import (
    Draft,
    contract_value_set,
    missing_for_complete_contract,
    pins_against_floors,
)
from narwhal.config.rules import Field
from narwhal.config.schema import BY_PATH, PREDICTIVE, fields_of
from narwhal.errors import ConfigError
from narwhal.model.engine import EngineSpec, Role
from narwhal.model.settings import FleetConfig

HANDOFF_TIMEOUT_S: Final = 25.0
"""What `serving.handoff_timeout_s: 0` means: vLLM's 30 s lease less a sixth."""

_Section = TypeVar("_Section")


@dataclass(frozen=True, slots=True)
class FleetReading:
    """An accepted fleet file.

    `values`: path (`engines[0].url`) → effective value, in the file's order of sections. `sources`: path
    → `file`, `default` or `default, limited by <path>`. `warnings`: sentences, may be empty.
    `variables`: environment variables that the file names.
    """

    path: str
    config: FleetConfig
    values: Mapping[str, Any]
    sources: Mapping[str, str]
    warnings: tuple[str, ...]
    variables: frozenset[str]


def load_fleet(path: str, env: Mapping[str, str]) -> FleetConfig:
    """The effective configuration of one fleet file. Raises ConfigError with every problem."""
    return read_fleet(path, env).config


def read_fleet(
    path: str,
    env: Mapping[str, str],
    *,
    known_connectors: Collection[str] = BUILT_IN_CONNECTORS,
    known_dialects: Collection[str] = BUILT_IN_DIALECTS,
) -> FleetReading:
    """As `load_fleet`, with where each value came from. Runtime hands in its registries' names."""
    data = _read(path)
    try:
        doc, oddities = parse(data)
        draft = check(
            doc,
            env,
            known_connectors=known_connectors,
            known_dialects=known_dialects,
            oddities=oddities,
        )
    except ConfigError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from None
    return FleetReading(
        path=path,
        config=_build(draft),
        values=_effective(draft),
        sources=_sources(draft),
        warnings=tuple(f"{path}: {warning}" for warning in _warnings(draft)),
        variables=_variables(draft),
    )


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None


def _build(draft: Draft) -> FleetConfig:
    values = draft.values
    types = get_type_hints(FleetConfig)
    sections = {
        name: _section(types[name], name, draft=draft)
        for name in ("slo", "controller", "serving", "engine", "recovery", "profiles")
    }
    return FleetConfig(
        model=values["model"],
        engines=tuple(_engine(draft, f"engines[{index}]") for index in range(draft.engines)),
        **sections,
        contract=_block(draft, "engine_contract"),
        contract_complete="engine_contract" in draft.blocks and not missing_for_complete_contract(draft),
        hardware=_block(draft, "hardware"),
        digest=_digest_of(_shared(draft)),
        section_digests=_section_digests(_shared(draft)),
    )


def _section(kind: type[_Section], path: str, *, draft: Draft) -> _Section:
    """One settings class from the values under `path`; its class-typed fields are subsections."""
    inner: dict[str, Any] = {}
    for name, type_ in get_type_hints(kind).items():
        full = f"{path}.{name}"
        inner[name] = _section(type_, full, draft=draft) if _is_section(type_) else _value(draft, full)
    return kind(**inner)


def _is_section(kind: Any) -> bool:
    return hasattr(kind, "__dataclass_fields__")


def _value(draft: Draft, path: str) -> Any:
    """The effective value: a 0 that stands for a computed one is replaced."""
    value = draft.values[path]
    if path == "serving.handoff_timeout_s":
        return value or HANDOFF_TIMEOUT_S
    if path == "engine.control_connections":
        return value or max(4, 2 * draft.engines)
    return value


def _engine(draft: Draft, place: str) -> EngineSpec:
    values = draft.values
    return EngineSpec(
        iid=values[f"{place}.iid"],
        url=values[f"{place}.url"],
        role=Role(values[f"{place}.role"]),
        pin=values[f"{place}.pin"],
        attestation_url=values[f"{place}.attestation_url"],
    )


def _block(draft: Draft, section: str) -> Mapping[str, Any] | None:
    """The set values of an optional block by field name, None when the block is not there."""
    if section not in draft.blocks:
        return None
    found = {name: draft.values[field.path] for name, field in fields_of(section).items()}
    return {name: value for name, value in found.items() if contract_value_set(value)}


def _table_row(path: str) -> Field:
    return BY_PATH[re.sub(r"\[\d+\]", "[]", path)]


def _effective(draft: Draft) -> dict[str, Any]:
    return {path: _value(draft, path) for path in draft.values}


def _shared(draft: Draft) -> dict[str, Any]:
    """What routers compare. A URL that came from a variable counts as its reference: that is per host."""
    shared = {
        re.sub(r"^engines\[\d+\]", f"engines[{_iid_of(draft, path)}]", path): value
        for path, value in _effective(draft).items()
        if not _table_row(path).per_host
    }
    for path, name in draft.references.items():
        shared[re.sub(r"^engines\[\d+\]", f"engines[{_iid_of(draft, path)}]", path)] = f"${{{name}}}"
    return shared


def _digest_of(shared: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(shared, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _section_digests(shared: Mapping[str, Any]) -> dict[str, str]:
    """Top-level section -> what tells whether it is another's: a difference can be named by them."""
    sections: dict[str, dict[str, Any]] = {}
    for path, value in shared.items():
        sections.setdefault(re.split(r"[.\[]", path)[0], {})[path] = value
    return {name: _digest_of(values)[:8] for name, values in sorted(sections.items())}


def _iid_of(draft: Draft, path: str) -> str:
    place = path.partition(".")[0]
    return str(draft.values.get(f"{place}.iid", ""))


def _sources(draft: Draft) -> dict[str, str]:
    sources = {}
    for path in draft.values:
        if path in draft.references:
            sources[path] = f"file, by ${{{draft.references[path]}}}"
        elif path in draft.given:
            sources[path] = "file"
        else:
            note = draft.notes.get(path)
            sources[path] = f"default, limited by {note}" if note else "default"
    return sources


def _warnings(draft: Draft) -> list[str]:
    """Fields whose part is not in this version, predictive admission served as open, pins against floors."""
    parts: dict[str, dict[str, None]] = defaultdict(dict)
    for path in draft.values:
        row = _table_row(path)
        if row.later in ("", PREDICTIVE) or path not in draft.given or draft.values[path] == row.at_rest:
            continue
        parts[row.later][row.path] = None
    warnings = []
    if parts:
        named = "; ".join(f"{part} ({', '.join(paths)})" for part, paths in parts.items())
        warnings.append(f"accepted, but this version does not act on it yet: {named}")
    if draft.values["serving.admission"] == "predictive":
        warnings.append("serving.admission is predictive, which this version serves as open")
    return [*warnings, *pins_against_floors(draft)]


def _variables(draft: Draft) -> frozenset[str]:
    named = set(draft.references.values())
    if key := draft.values["engine.engine_api_key_env"]:
        named.add(key)
    return frozenset(named)
