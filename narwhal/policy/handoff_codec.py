"""The handoff document on the wire: `narwhal.handoff` v1 as JSON, and its deltas (http-api.md section 4).

A delta maps changed top-level fields to their whole new values; applying it twice is applying it once.
Top-level fields that this version does not know are carried in `extra`, values unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from narwhal.errors import SavedStateError
from narwhal.model.handoff import HANDOFF_SCHEMA, SCHEMA_VERSION, HandoffDocument
from narwhal.model.lease import MAX_EPOCH
from narwhal.model.numbers import count, finite
from narwhal.model.plain_text import to_json
from narwhal.model.request import Counters
from narwhal.policy.ageing import aged, alike

_COUNTERS = frozenset(Counters.__dataclass_fields__)
_HEAD = frozenset({"schema", "schema_version"})


def to_fields(document: HandoffDocument) -> dict[str, Any]:
    """The document as a JSON object: what is shown, published and checkpointed."""
    return {
        **document.extra,
        "schema": HANDOFF_SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "at": document.at,
        "run": document.run,
        "model": document.model,
        "epoch": document.epoch,
        "holder": document.holder,
        "engines": list(document.engines),
        "roles": {iid: str(role) for iid, role in document.roles.items()},
        "ejected": list(document.ejected),
        "ejections": dict(document.ejections),
        "inference_sources": {iid: list(names) for iid, names in document.inference_sources.items()},
        "inference_holds": dict(document.inference_holds),
        "counters": document.counters.fields(),
        "lifecycle": dict(document.lifecycle),
        "demand_risk": document.demand_risk,
        "holds": dict(document.holds),
        "streaks": dict(document.streaks),
        "edges": document.edges,
        "kv_ledger": document.kv_ledger,
    }


def encode(document: HandoffDocument) -> bytes:
    return to_json(to_fields(document))


def decode(data: bytes | Mapping[str, Any], *, source: str = "handoff") -> HandoffDocument:
    """Reads a document. Raises SavedStateError naming `source` and the field at fault."""
    return _Reader(_object(data, source), source).document()


def diff(old: HandoffDocument, new: HandoffDocument) -> dict[str, Any]:
    """Top-level fields whose value differs, with the new values; may be empty.

    `old` as of the instant of `new`: times that only ran on are no change.
    """
    before, after = to_fields(old), to_fields(new)
    return {name: value for name, value in after.items() if not alike(before.get(name, _ABSENT), value)}


def at_age(document: HandoffDocument, by_s: float) -> HandoffDocument:
    """The document `by_s` seconds later: remaining times shorter, ages greater, all else as it was."""
    parts = ("demand_risk", "holds", "edges", "kv_ledger")
    return replace(document, **{name: aged(getattr(document, name), by_s) for name in parts})


def apply(document: HandoffDocument, delta: Mapping[str, Any]) -> HandoffDocument:
    """The document with the delta's fields replaced. Raises SavedStateError as `decode` does."""
    return decode({**to_fields(document), **delta}, source="log delta")


_ABSENT = object()


def _object(data: bytes | Mapping[str, Any], source: str) -> Mapping[str, Any]:
    if isinstance(data, Mapping):
        return data
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise SavedStateError(f"{source}: not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise SavedStateError(f"{source}: not a JSON object")
    return fields


class _Reader:
    """One document being read; every complaint names the source and the field."""

    def __init__(self, fields: Mapping[str, Any], source: str) -> None:
        self._fields = fields
        self._source = source

    def document(self) -> HandoffDocument:
        self._check_schema()
        roles = self._mapping("roles")
        return HandoffDocument(
            at=float(self._checked("at", _is_number, wanted="a finite number")),
            run=self._text("run"),
            model=self._text("model"),
            epoch=self._checked("epoch", _is_epoch, wanted=f"an integer from 0 to {MAX_EPOCH}"),
            holder=self._text("holder"),
            engines=self._names("engines", required=True),
            roles={iid: self._role(iid, role) for iid, role in roles.items()},
            ejected=self._names("ejected"),
            ejections=self._mapping("ejections"),
            inference_sources=self._sources(),
            inference_holds=self._mapping("inference_holds"),
            counters=self._counters(),
            lifecycle=self._mapping("lifecycle"),
            demand_risk=self._mapping("demand_risk") if self._fields.get("demand_risk") is not None else None,
            holds=self._mapping("holds"),
            streaks=self._mapping("streaks"),
            edges=self._fields.get("edges", []),
            kv_ledger=self._fields.get("kv_ledger", {}),
            extra={name: value for name, value in self._fields.items() if name not in _KNOWN},
        )

    def _check_schema(self) -> None:
        if self._fields.get("schema") != HANDOFF_SCHEMA:
            raise self._wrong("schema", f'"{HANDOFF_SCHEMA}"')
        version = self._fields.get("schema_version")
        if version != SCHEMA_VERSION or isinstance(version, bool):
            raise self._wrong("schema_version", str(SCHEMA_VERSION))

    def _wrong(self, name: str, wanted: str) -> SavedStateError:
        found = repr(self._fields.get(name, "missing"))
        return SavedStateError(f"{self._source}: {name} must be {wanted}, not {found[:80]}")

    def _checked(self, name: str, holds: Callable[[Any], bool], *, wanted: str) -> Any:
        value = self._fields.get(name)
        if not holds(value):
            raise self._wrong(name, wanted)
        return value

    def _text(self, name: str) -> str:
        return str(self._checked(name, lambda value: isinstance(value, str), wanted="text"))

    def _names(self, name: str, *, required: bool = False) -> tuple[str, ...]:
        value = self._fields.get(name, None if required else [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self._wrong(name, "a list of IDs")
        return tuple(value)

    def _mapping(self, name: str) -> dict[str, Any]:
        value = self._fields.get(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return value

    def _role(self, iid: str, role: Any) -> str:
        if role not in ("prefill", "decode"):
            raise SavedStateError(f"{self._source}: roles.{iid} must be prefill or decode, not {role!r:.80}")
        return str(role)

    def _sources(self) -> dict[str, tuple[str, ...]]:
        sources = self._mapping("inference_sources")
        if not all(isinstance(names, list) for names in sources.values()):
            raise self._wrong("inference_sources", "an object of lists")
        return {iid: tuple(str(name) for name in names) for iid, names in sources.items()}

    def _counters(self) -> Counters:
        counters = self._mapping("counters")
        if not all(_is_count(told) for name, told in counters.items() if name in _COUNTERS):
            raise self._wrong("counters", "an object of integers from 0 to 2^53")
        return Counters(**{name: told for name, told in counters.items() if name in _COUNTERS})


def _is_number(value: Any) -> bool:
    return finite(value) is not None


def _is_count(value: Any) -> bool:
    """More than a double counts exactly is damage: it could not be written again."""
    return count(value) is not None


def _is_epoch(value: Any) -> bool:
    """With a higher floor no acquire is ever granted: such a document would keep its router out for good."""
    return _is_count(value) and value <= MAX_EPOCH


_KNOWN = _HEAD | (frozenset(HandoffDocument.__dataclass_fields__) - {"extra"})
