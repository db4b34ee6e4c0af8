"""Misbehaviour on order: which faults exist, what they take, and which request gets which.

`POST /sim/faults` takes one object or `{"faults": [...]}`; each has `fault` (a name of `KINDS`), may
have `leg` (a name of `LEGS`, default any), `count` (the next N matching requests; default until
cleared), `match` (only requests whose body has this text) and the fields of its kind.
`DELETE /sim/faults` clears them all.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from narwhal.errors import NarwhalError
from narwhal.model.numbers import finite

LEGS = ("any", "prefill", "decode", "probe", "tokenize", "models", "health", "metrics", "version", "reset")

HANDOFF_VARIANTS = (
    "missing", "null", "not_object", "no_host", "no_port", "no_request_id", "no_engine_id",
    "text_port", "null_blocks", "empty_blocks", "few_blocks", "negative_block", "text_block",
    "not_remote_prefill", "unknown_engine", "dead_port",
)  # fmt: skip


class FaultError(NarwhalError):
    """A fault order that cannot be followed; the message names field and rule."""


@dataclass(frozen=True, slots=True)
class Param:
    """One field of a kind: the type of its value, what stands for it when left out, its rules."""

    type: str
    default: Any = None
    required: bool = False
    least: float = 0.0
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """`engine_wide` kinds act at once on the whole engine and take neither leg, count nor match."""

    about: str
    params: Mapping[str, Param] = field(default_factory=dict)
    engine_wide: bool = False


_OF_EVERY_KIND = ("fault", "leg", "count", "match")
_AFTER_1 = {"after": Param("integer", 1)}
_AFTER_0 = {"after": Param("integer", 0)}
_SECONDS = {"seconds": Param("number", required=True)}

KINDS: Mapping[str, Kind] = {
    "refuse": Kind(
        "the engine's listener is closed, idle connections too, busy ones after their answer",
        engine_wide=True,
    ),
    "hang": Kind("the request is read and never answered"),
    "slow": Kind("the answer begins that much later", _SECONDS),
    "slow_first_token": Kind("the head comes at once, the first token that much later", _SECONDS),
    "silent_first_token": Kind("the head comes at once, no token ever"),
    "slow_tokens": Kind(
        "every token after the first takes that many times as long",
        {"factor": Param("number", required=True)},
    ),
    "stall": Kind(
        "silence after that many tokens, for good or for `seconds`",
        {**_AFTER_1, "seconds": Param("number")},
    ),
    "close": Kind("the connection is closed in the middle of the body", _AFTER_1),
    "no_done": Kind("the body ends cleanly but without [DONE]", {"after": Param("integer")}),
    "rst": Kind("the connection is reset after that many tokens; 0: before the head", _AFTER_0),
    "status": Kind(
        "an error answer in the engine's own shape",
        {
            "status": Param("integer", required=True, least=400),
            "retry_after": Param("integer"),
            "message": Param("string", "simulated refusal"),
        },
    ),
    "error_in_200": Kind("an error object inside a 200, then [DONE]", _AFTER_0),
    "handoff": Kind(
        "the prefill answer's KV descriptor is missing or malformed",
        {"variant": Param("string", required=True, choices=HANDOFF_VARIANTS)},
    ),
    "abort": Kind("the answer is cut with finish_reason abort", _AFTER_1),
    "wrong_model": Kind("the engine serves another model", {"model": Param("string", "another-model")}),
    "process_start": Kind("/metrics tells another process start", {"shift": Param("number", 100.0)}),
    "huge": Kind("every token event is padded to that many bytes", {"bytes": Param("integer", 1 << 20)}),
    "crlf": Kind("events use CRLF line ends"),
    "cr": Kind("events use CR line ends"),
    "comments": Kind("comment lines and blank keep-alives between events"),
    "multi_line": Kind("each event's JSON is spread over several data: lines"),
    "split_utf8": Kind("packets end in the middle of UTF-8 sequences"),
    "one_byte": Kind("one byte per packet"),
    "split": Kind(
        "the stream comes in two packets, cut at this byte, `gap_s` seconds apart",
        {"at": Param("integer", required=True), "gap_s": Param("number", 0.005)},
    ),
    "core_dead": Kind("the engine core dies: running work breaks, health 503, then gone", engine_wide=True),
    "core_stopped": Kind("the engine core stops: health stays 200, work waits without end", engine_wide=True),
    "edge": Kind(
        "pulls from the producer whose side channel has this port fail at once, or never end",
        {
            "port": Param("integer", required=True),
            "how": Param("string", "lost", choices=("lost", "silent")),
        },
        engine_wide=True,
    ),
    "restart": Kind(
        "gone for `down_s`, then a new process on the same port",
        {"down_s": Param("number", 0.0)},
        engine_wide=True,
    ),
}


@dataclass(slots=True)
class Fault:
    """One accepted order. `remaining` None = until cleared; an empty `match` is in every body."""

    kind: str
    leg: str
    remaining: int | None
    match: str
    params: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.params[name]

    def document(self) -> dict[str, Any]:
        about = {"fault": self.kind, "leg": self.leg, "count": self.remaining, "match": self.match}
        return {**about, **self.params}


def parse_faults(document: Any) -> list[Fault]:
    """Read the body of `POST /sim/faults`. Raises FaultError naming what is wrong; all or nothing."""
    if isinstance(document, Mapping) and "faults" in document:
        orders = document["faults"]
        if not isinstance(orders, list):
            raise FaultError("faults: must be a list of objects")
    else:
        orders = [document]
    return [parse_fault(order) for order in orders]


def parse_fault(order: Any) -> Fault:
    if not isinstance(order, Mapping):
        raise FaultError('a fault must be an object such as {"fault": "hang"}')
    name = order.get("fault")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise FaultError(f"fault: {_unknown(name, KINDS)}")
    leg, count, match = order.get("leg", "any"), order.get("count"), order.get("match") or ""
    if leg not in LEGS:
        raise FaultError(f"leg: {_unknown(leg, LEGS)}")
    if count is not None and (not _is_integer(count) or count < 1):
        raise FaultError("count: must be an integer of at least 1, or null for until cleared")
    if not isinstance(match, str):
        raise FaultError(f"match: must be a string, not {match!r:.60}")
    if kind.engine_wide and (leg != "any" or count is not None or match):
        raise FaultError(f"{name}: acts on the whole engine and takes neither leg, count nor match")
    given = {key: value for key, value in order.items() if key not in _OF_EVERY_KIND}
    for key in given:
        if key not in kind.params:
            raise FaultError(f"{name}.{key}: {_unknown(key, kind.params)}")
    params = {key: _value(f"{name}.{key}", given.get(key), param=param) for key, param in kind.params.items()}
    return Fault(str(name), str(leg), count, match, params)


def _value(where: str, value: Any, *, param: Param) -> Any:
    if value is None:
        if param.required:
            raise FaultError(f"{where}: is required")
        return param.default
    if not _CHECKS[param.type](value):
        raise FaultError(f"{where}: must be {_A[param.type]}, not {value!r:.60}")
    if param.type != "string" and value < param.least:
        raise FaultError(f"{where}: must be at least {param.least:g}, not {value}")
    if param.choices and value not in param.choices:
        raise FaultError(f"{where}: {_unknown(value, param.choices)}")
    return value


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return finite(value) is not None


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


_A = {"integer": "an integer", "number": "a number", "string": "a string"}
_CHECKS = {"integer": _is_integer, "number": _is_number, "string": _is_string}


def _unknown(name: Any, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    close = difflib.get_close_matches(str(name), list(known), n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"{name!r:.60} is not known{hint}; known: {', '.join(known) or 'none'}"


class FaultBook:
    """The orders in force on one engine, oldest first."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        self._faults.append(fault)

    def clear(self) -> None:
        self._faults.clear()

    def documents(self) -> list[dict[str, Any]]:
        return [fault.document() for fault in self._faults]

    def edge(self, port: int) -> str:
        """How pulls from the producer with this side channel fail; empty: they do not."""
        for fault in self._faults:
            if fault.kind == "edge" and fault["port"] == port:
                return str(fault["how"])
        return ""

    def take(self, leg: str, body: bytes = b"") -> dict[str, Fault]:
        """The faults that this request gets: the oldest of each kind; counts go down by one."""
        if not self._faults:
            return {}
        taken: dict[str, Fault] = {}
        for fault in self._faults:
            if KINDS[fault.kind].engine_wide or fault.kind in taken:
                continue
            if fault.leg in ("any", leg) and fault.match.encode() in body:
                taken[fault.kind] = fault
                if fault.remaining is not None:
                    fault.remaining -= 1
        self._faults = [fault for fault in self._faults if fault.remaining != 0]
        return taken
