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

from collections.abc import Callable, Mapping
from typing import Any, Final

from narwhal.model.lease import MAX_EPOCH
from narwhal.model.maintenance import WaveState
from narwhal.model.numbers import count, finite
from narwhal.model.request import Counters

Shape = Callable[[Any, str], str]
"""Of a value and where it stands: what is wrong, "" for nothing."""

UNREADABLE: Final = "the drains of another owner could not be read"

_MISSING: Final = object()


def _told(at: str, wanted: str, *, found: Any) -> str:
    return f"{at} must be {wanted}, not " + ("missing" if found is _MISSING else f"{found!r:.80}")


def _is(wanted: str, holds: Callable[[Any], bool]) -> Shape:
    return lambda value, at: "" if holds(value) else _told(at, wanted, found=value)


def _or_null(shape: Shape) -> Shape:
    return lambda value, at: "" if value is None else shape(value, at)


def _list(shape: Shape, wanted: str = "a list") -> Shape:
    def check(value: Any, at: str) -> str:
        if not isinstance(value, list | tuple):
            return _told(at, wanted, found=value)
        found = (shape(one, f"{at}[{number}]") for number, one in enumerate(value))
        return next(filter(None, found), "")

    return check


def _by_name(shape: Shape) -> Shape:
    def check(value: Any, at: str) -> str:
        if not isinstance(value, Mapping):
            return _told(at, "an object", found=value)
        return next(filter(None, (shape(one, f"{at}.{name}") for name, one in value.items())), "")

    return check


def _object(required: Mapping[str, Shape], **optional: Shape) -> Shape:
    def check(value: Any, at: str) -> str:
        if not isinstance(value, Mapping):
            return _told(at, "an object", found=value)
        told = [shape(value.get(name, _MISSING), f"{at}.{name}") for name, shape in required.items()]
        told += [shape(value[name], f"{at}.{name}") for name, shape in optional.items() if name in value]
        return next(filter(None, told), "")

    return check


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TEXT = _is("text", lambda value: isinstance(value, str))
_NUMBER = _is("a number", _is_number)
_FLAG = _is("true or false", lambda value: isinstance(value, bool))
# More than a double counts exactly is damage: it could not be written again.
_COUNT = _is("an integer from 0 to 2^53", lambda value: count(value) is not None)
# With a higher floor no acquire is ever granted: such a document would keep its router out for good.
_EPOCH = _is(
    f"an integer from 0 to {MAX_EPOCH}", lambda value: count(value) is not None and value <= MAX_EPOCH
)
_NAMES = _list(_TEXT, "a list of IDs")
_WORDS = _by_name(_TEXT)

_CHECK = _object({"name": _TEXT, "outcome": _TEXT}, detail=_TEXT)
_RECORD = _object(
    {"engine": _TEXT, "state": _TEXT},
    deadline_at=_or_null(_NUMBER),
    wave_id=_or_null(_TEXT),
    old_process_start=_or_null(_NUMBER),
    new_process_start=_or_null(_NUMBER),
    vllm_version=_TEXT,
    attestation_digest=_TEXT,
    checks=_list(_CHECK),
    error=_TEXT,
    ready_to_stop=_FLAG,
)
_RECORDS = _list(_RECORD)
_WAVE = _or_null(_object({"state": _TEXT}, id=_or_null(_TEXT), why=_TEXT, ready_to_stop=_FLAG))
_BESIDE: Final[Mapping[str, Shape]] = {
    "engine_restart_policy": _TEXT,
    "process_starts": _by_name(_NUMBER),
    "backend_outage": _FLAG,
    "awaiting_identity": _NAMES,
    "uncompared_starts": _NAMES,
}

REQUIRED: Final[Mapping[str, Shape]] = {
    "at": _is("a finite number", lambda value: finite(value) is not None),
    "run": _TEXT,
    "model": _TEXT,
    "epoch": _EPOCH,
    "holder": _TEXT,
    "engines": _NAMES,
    "lifecycle": _object({}, records=_RECORDS, wave=_WAVE, **_BESIDE),
}
OPTIONAL: Final[Mapping[str, Shape]] = {
    "roles": _by_name(_is("prefill or decode", lambda value: value in ("prefill", "decode"))),
    "ejected": _NAMES,
    "ejections": _by_name(_WORDS),
    "inference_sources": _by_name(_NAMES),
    "inference_holds": _by_name(_WORDS),
    "counters": _object({}, **dict.fromkeys(Counters.__dataclass_fields__, _COUNT)),
    "demand_risk": _or_null(_object({}, kind=_TEXT, age_s=_NUMBER, events=_by_name(_NUMBER))),
    "holds": _by_name(_object({}, kind=_TEXT, reason=_TEXT, remaining_s=_NUMBER)),
    "streaks": _by_name(_by_name(_NUMBER)),
    "edges": _list(_object({"producer": _TEXT, "consumer": _TEXT}, reason=_TEXT, age_s=_NUMBER)),
    "kv_ledger": _by_name(
        _list(_object({}, handoffs=_NUMBER, tokens=_NUMBER, work=_NUMBER, remaining_s=_NUMBER))
    ),
}
_BLANK: Final[Mapping[str, Any]] = {"at": 0.0, "run": "", "model": "", "epoch": 0, "holder": ""}


def wrong(fields: Mapping[str, Any], *, of: frozenset[str] | None = None) -> str:
    """The first field of a wrong type (among `of`), a few words; "" if there is none."""
    shapes = {**REQUIRED, **{name: shape for name, shape in OPTIONAL.items() if name in fields}}
    told = (
        shape(fields.get(name, _MISSING), name) for name, shape in shapes.items() if of is None or name in of
    )
    return next(filter(None, told), "")


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
