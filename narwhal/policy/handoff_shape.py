"""The types of a handoff document, field by field, and the safe reading of one that has a wrong type. Pure.

| a field has a wrong type | its safe reading |
| --- | --- |
| `lifecycle`, missing too; `wave`, `records`; a record that names no engine | the fleet waits for a wave |
| another field of a record | as it is: that engine is read as blocked |
| `ejected` | the engines of `ejections` |
| `engines` | those of `roles`; without any the document is of no use |
| anything else | as if it had never been told |

Types only: what a number or word of the right type is worth, its reader judges. Fields that this version does
not know are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from narwhal.model.lease import MAX_EPOCH
from narwhal.model.maintenance import WaveState
from narwhal.model.numbers import count
from narwhal.model.request import Counters
from narwhal.model.shape import (
    COUNT,
    FINITE,
    FLAG,
    NUMBER,
    TEXT,
    Shape,
    by_name,
    is_,
    list_of,
    object_of,
    or_null,
)

UNREADABLE: Final = "the drains of another owner could not be read"

# With a higher floor no acquire is ever granted: such a document would keep its router out for good.
_EPOCH = is_(
    f"an integer from 0 to {MAX_EPOCH}", lambda value: count(value) is not None and value <= MAX_EPOCH
)
_NAMES = list_of(TEXT, "a list of IDs")
_WORDS = by_name(TEXT)

_CHECK = object_of({"name": TEXT, "outcome": TEXT}, detail=TEXT)
_RECORD = object_of(
    {"engine": TEXT, "state": TEXT},
    deadline_at=or_null(NUMBER),
    wave_id=or_null(TEXT),
    old_process_start=or_null(NUMBER),
    new_process_start=or_null(NUMBER),
    vllm_version=TEXT,
    attestation_digest=TEXT,
    checks=list_of(_CHECK),
    error=TEXT,
    ready_to_stop=FLAG,
)
_RECORDS = list_of(_RECORD)
_WAVE = or_null(object_of({"state": TEXT}, id=or_null(TEXT), why=TEXT, ready_to_stop=FLAG))
_BESIDE: Final[Mapping[str, Shape]] = {
    "engine_restart_policy": TEXT,
    "process_starts": by_name(NUMBER),
    "backend_outage": FLAG,
    "awaiting_identity": _NAMES,
    "uncompared_starts": _NAMES,
}

REQUIRED: Final[Mapping[str, Shape]] = {
    "at": FINITE,
    "run": TEXT,
    "model": TEXT,
    "epoch": _EPOCH,
    "holder": TEXT,
    "engines": _NAMES,
    "lifecycle": object_of({}, records=_RECORDS, wave=_WAVE, **_BESIDE),
}
OPTIONAL: Final[Mapping[str, Shape]] = {
    "roles": by_name(is_("prefill or decode", lambda value: value in ("prefill", "decode"))),
    "ejected": _NAMES,
    "ejections": by_name(_WORDS),
    "inference_sources": by_name(_NAMES),
    "inference_holds": by_name(_WORDS),
    "counters": object_of({}, **dict.fromkeys(Counters.__dataclass_fields__, COUNT)),
    "demand_risk": or_null(object_of({}, kind=TEXT, age_s=NUMBER, events=by_name(NUMBER))),
    "holds": by_name(object_of({}, kind=TEXT, reason=TEXT, remaining_s=NUMBER)),
    "streaks": by_name(by_name(NUMBER)),
    "edges": list_of(object_of({"producer": TEXT, "consumer": TEXT}, reason=TEXT, age_s=NUMBER)),
    "kv_ledger": by_name(
        list_of(object_of({}, handoffs=NUMBER, tokens=NUMBER, work=NUMBER, remaining_s=NUMBER))
    ),
}
_BLANK: Final[Mapping[str, Any]] = {"at": 0.0, "run": "", "model": "", "epoch": 0, "holder": ""}


def wrong(fields: Mapping[str, Any], *, of: frozenset[str] | None = None) -> str:
    """The first field of a wrong type (among `of`), a few words; "" if there is none."""
    required, optional = (
        {name: shape for name, shape in shapes.items() if of is None or name in of}
        for shapes in (REQUIRED, OPTIONAL)
    )
    return object_of(required, **optional)(fields, "")


def safe(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with each one of a wrong type in its safe reading; `wrong` finds none in it, unless
    `engines` could not be told, or in a record that names its engine."""
    sound = dict(fields)
    for name, shape in OPTIONAL.items():
        if name in sound and shape(sound[name], name):
            del sound[name]
    if "ejected" in fields and "ejected" not in sound:
        sound["ejected"] = [str(iid) for iid in sound.get("ejections", {})]
    for name, blank in _BLANK.items():
        if REQUIRED[name](sound.get(name), name):
            sound[name] = blank
    if _NAMES(sound.get("engines"), "engines"):
        sound["engines"] = sorted(map(str, sound.get("roles", {})))
    sound["lifecycle"] = _safe_lifecycle(sound.get("lifecycle"))
    return sound


def _safe_lifecycle(told: Any) -> dict[str, Any]:
    lifecycle = dict(told) if isinstance(told, Mapping) else {}
    for name, shape in _BESIDE.items():
        if name in lifecycle and shape(lifecycle[name], name):
            del lifecycle[name]
    rows = lifecycle.get("records", [] if isinstance(told, Mapping) else None)
    known = [row for row in rows if _names_engine(row)] if isinstance(rows, list | tuple) else []
    wave = lifecycle.get("wave")
    lost = not isinstance(rows, list | tuple) or len(known) < len(rows)
    if _WAVE(wave, "wave") or (lost and wave is None):
        wave = {"id": None, "state": WaveState.REQUIRED.value, "why": UNREADABLE}
    return {**lifecycle, "wave": wave, "records": known}


def _names_engine(row: Any) -> bool:
    return isinstance(row, Mapping) and isinstance(row.get("engine"), str)
