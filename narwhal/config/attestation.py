"""The document that `narwhal-attest` is started with (`narwhal.attestation` v1), checked whole.

{"schema": "narwhal.attestation", "schema_version": 1,
 "contract": {"vllm_version": "0.32.0", "kv_heads": 8},
 "sources": {"vllm_version": "pip show vllm", "kv_heads": "config.json num_key_value_heads"}}
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from narwhal.config.json_text import SPOILED, parse, printable
from narwhal.config.relations import contract_value_set
from narwhal.config.rules import REQUIRED, shown
from narwhal.config.schema import fields_of
from narwhal.errors import ConfigError
from narwhal.model.attestation import SCHEMA, SCHEMA_VERSION

_KEYS = ("schema", "schema_version", "contract", "sources")


@dataclass(frozen=True, slots=True)
class AttestedDocument:
    """`contract`: field to value, those that are set, the version always; `sources`: the same fields to
    where each value was read."""

    contract: Mapping[str, Any]
    sources: Mapping[str, str]

    @property
    def version(self) -> str:
        return str(self.contract["vllm_version"])


def read_document(path: str) -> AttestedDocument:
    """Raises ConfigError with every problem, one sentence each."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        document, problems = parse(data)
        problems += _problems(document)
        if problems:
            raise ConfigError(problems)
    except ConfigError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from None
    contract = {name: value for name, value in document["contract"].items() if contract_value_set(value)}
    return AttestedDocument(contract, document["sources"])


def _problems(document: Any) -> Iterator[str]:
    if not isinstance(document, dict):
        yield f"the document must be an object, got {shown(document)}"
        return
    for key in document:
        if key not in _KEYS:
            yield _unknown("", key, known=_KEYS)
    for key, wanted in (("schema", SCHEMA), ("schema_version", SCHEMA_VERSION)):
        value = document.get(key)
        if value is not SPOILED and (value != wanted or isinstance(value, bool)):
            yield f"{key} must be {shown(wanted)}, got {shown(value)}"
    contract, sources = document.get("contract"), document.get("sources")
    for name, value in (("contract", contract), ("sources", sources)):
        if not isinstance(value, dict) and value is not SPOILED:
            yield f"{name} must be an object, got {shown(value)}"
    if isinstance(contract, dict) and isinstance(sources, dict):
        yield from _contract_problems(contract)
        yield from _source_problems(contract, sources)


def _contract_problems(contract: Mapping[str, Any]) -> Iterator[str]:
    """A default of the fleet file is none here: what was not read is not attested."""
    known = fields_of("engine_contract")
    for name, value in contract.items():
        if name not in known:
            yield _unknown("contract.", name, known=tuple(known))
        elif value is not SPOILED and value not in (None, "") and (problem := known[name].problem(value)):
            yield f"contract.{name} {problem}"
    for name, field in known.items():
        if field.default is REQUIRED and contract.get(name) in (None, ""):
            yield f"contract.{name} is required"


def _source_problems(contract: Mapping[str, Any], sources: Mapping[str, Any]) -> Iterator[str]:
    populated = [
        name for name, value in contract.items() if value is not SPOILED and contract_value_set(value)
    ]
    for name in populated:
        if name not in sources and name in fields_of("engine_contract"):
            yield f"sources.{name} is required: where was contract.{name} read?"
    for name, source in sources.items():
        if source is SPOILED:
            continue
        if not isinstance(source, str) or not source.strip():
            yield f"sources.{printable(name)} must be a nonempty string, got {shown(source)}"
        if name not in contract or (name not in populated and contract[name] is not SPOILED):
            yield f"sources.{printable(name)} is of no populated field of contract"


def _unknown(place: str, key: str, *, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
    return f"{place}{printable(key)} is not a known field" + (
        f"; did you mean {place}{near[0]}?" if near else ""
    )
