"""The handoff document on the wire: `narwhal.handoff` v1 as JSON, and its deltas (http-api.md section 4).

A delta maps changed top-level fields to their whole new values; applying it twice is applying it once.
Top-level fields that this version does not know are carried in `extra`, values unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from narwhal.errors import SavedStateError
from narwhal.model.handoff import HANDOFF_SCHEMA, SCHEMA_VERSION, HandoffDocument
from narwhal.model.plain_text import to_json
from narwhal.model.request import Counters
from narwhal.policy.ageing import aged, alike
from narwhal.policy.handoff_shape import safe, wrong

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
    return _checked(_object(data, source), source)


def salvage(fields: Mapping[str, Any]) -> HandoffDocument | None:
    """A document with fields of a wrong type, each in its safe reading. None: it is of no use."""
    sound = safe(fields) if not _of_another_schema(fields) else {}
    return _document(sound) if sound.get("engines") else None


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
    return _checked({**to_fields(document), **delta}, "log delta", of=frozenset(delta))


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


def _checked(fields: Mapping[str, Any], source: str, *, of: frozenset[str] | None = None) -> HandoffDocument:
    """`of`: the fields whose types are not known to be right; None: all."""
    told = _of_another_schema(fields) or wrong(fields, of=of)
    if told:
        raise SavedStateError(f"{source}: {told}", fields=fields)
    return _document(fields)


def _of_another_schema(fields: Mapping[str, Any]) -> str:
    """A few words; "" where it is one that this version reads."""
    if fields.get("schema") != HANDOFF_SCHEMA:
        return f'schema must be "{HANDOFF_SCHEMA}", not {fields.get("schema")!r:.80}'
    version = fields.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        return f"schema_version must be {SCHEMA_VERSION}, not {version!r:.80}"
    return ""


def _document(fields: Mapping[str, Any]) -> HandoffDocument:
    """Of fields that all have their types."""
    sources, counters = fields.get("inference_sources", {}), fields.get("counters", {})
    return HandoffDocument(
        at=float(fields["at"]),
        run=fields["run"],
        model=fields["model"],
        epoch=fields["epoch"],
        holder=fields["holder"],
        engines=tuple(fields["engines"]),
        roles=dict(fields.get("roles", {})),
        ejected=tuple(fields.get("ejected", ())),
        ejections=fields.get("ejections", {}),
        inference_sources={iid: tuple(names) for iid, names in sources.items()},
        inference_holds=fields.get("inference_holds", {}),
        counters=Counters(**{name: told for name, told in counters.items() if name in _COUNTERS}),
        lifecycle=fields["lifecycle"],
        demand_risk=fields.get("demand_risk"),
        holds=fields.get("holds", {}),
        streaks=fields.get("streaks", {}),
        edges=fields.get("edges", []),
        kv_ledger=fields.get("kv_ledger", {}),
        extra={name: value for name, value in fields.items() if name not in _KNOWN},
    )


_KNOWN = _HEAD | (frozenset(HandoffDocument.__dataclass_fields__) - {"extra"})
