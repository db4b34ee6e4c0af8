"""What a router's documents must have for the commands that read them: looked at once, where they come in.

A proxy, another server or a router of another version may answer in its place, with 200 too. What is more
than this in a document is let through: a newer router may tell more. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from narwhal.model.numbers import count, finite


@dataclass(frozen=True, slots=True)
class Leaf:
    """`words`: what it must be."""

    words: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Each:
    """A list of such."""

    of: Shape


@dataclass(frozen=True, slots=True)
class Rows:
    """An object with one such entry for each ID, and one at least."""

    of: Shape


@dataclass(frozen=True, slots=True)
class Maybe:
    """May be left out."""

    of: Shape


Shape = Leaf | Each | Rows | Maybe | Mapping[str, Any]

TEXT: Final = Leaf("text", lambda value: isinstance(value, str))
NAME: Final = Leaf("text or null", lambda value: value is None or isinstance(value, str))
FLAG: Final = Leaf("true or false", lambda value: isinstance(value, bool))
COUNT: Final = Leaf("a count", lambda value: count(value) is not None)
NUMBER: Final = Leaf("a number", lambda value: finite(value) is not None)
LIMIT: Final = Leaf("a number or null", lambda value: value is None or finite(value) is not None)
OBJECT: Final = Leaf("an object", lambda value: isinstance(value, dict))
ANY: Final = Leaf("there", lambda value: True)
"""For what is looked at again where it is shown."""
STORE_ONLY: Final = Maybe(Leaf("left to the store's own records", lambda value: False))


@dataclass(frozen=True, slots=True)
class Page:
    """One document: where it is, its schema, and what it must have."""

    path: str
    schema: str
    shape: Shape

    def wrong(self, document: Any) -> str:
        """ "" for such a document, else what about it is not so."""
        if not isinstance(document, dict):
            return "no JSON object"
        if document.get("schema") != self.schema:
            return f"schema is not {self.schema}"
        return _wrong(document, self.shape, at="")


def _wrong(value: Any, shape: Shape, *, at: str) -> str:
    match shape:
        case Leaf():
            return "" if shape.holds(value) else f"{at} is not {shape.words}"
        case Maybe():
            return _wrong(value, shape.of, at=at)
        case Each():
            if not isinstance(value, list):
                return f"{at} is no list"
            found = (_wrong(one, shape.of, at=f"{at}[{number}]") for number, one in enumerate(value))
        case Rows():
            if not isinstance(value, dict) or not value:
                return f"{at} has no entries"
            found = (_wrong(one, shape.of, at=f"{at}.{name}") for name, one in value.items())
        case _:
            if not isinstance(value, dict):
                return f"{at} is no object"
            found = (_field(value, name, shape=inner, at=at) for name, inner in shape.items())
    return next(filter(None, found), "")


def _field(value: Mapping[str, Any], name: str, *, shape: Shape, at: str) -> str:
    place = f"{at}.{name}" if at else name
    if name in value:
        return _wrong(value[name], shape, at=place)
    return "" if isinstance(shape, Maybe) else f"{place} is missing"


LIFECYCLE: Final = Page(
    "/narwhal/lifecycle",
    "narwhal.lifecycle",
    {
        "router": {"controls_fleet": FLAG, "role": TEXT, "epoch": COUNT},
        "engine_restart_policy": TEXT,
        "process_starts": OBJECT,
        "engines": Rows(
            {
                "state": TEXT,
                "draining": FLAG,
                "accepts_new": FLAG,
                "ready_to_stop": FLAG,
                "resident": {"prefill": COUNT, "decode": COUNT},
                "deadline_at": LIMIT,
                "deadline_in_s": LIMIT,
                "old_process_start": ANY,
                "new_process_start": ANY,
                "checks": Each({"name": TEXT, "outcome": TEXT, "detail": TEXT}),
                "error": TEXT,
            }
        ),
        "wave": {"id": NAME, "active": FLAG, "readiness_withdrawn": FLAG, "ready_to_stop": FLAG},
    },
)
CLUSTER: Final = Page(
    "/narwhal/cluster",
    "narwhal.cluster",
    {
        "lease": {
            "state": TEXT,
            "holder": TEXT,
            "router_id": TEXT,
            "url": TEXT,
            "epoch": COUNT,
            "seq": COUNT,
            "ttl_s": LIMIT,
            "valid_for_s": LIMIT,
            "host": STORE_ONLY,
            "acquired_age_s": STORE_ONLY,
            "renewed_age_s": STORE_ONLY,
        },
        "routers": Each(
            {
                "router_id": TEXT,
                "url": TEXT,
                "control_url": Maybe(TEXT),
                "role": TEXT,
                "mirror_age_s": LIMIT,
                "version": TEXT,
                "ready_to_take": FLAG,
                "drift": Each(TEXT),
                "seen_s": NUMBER,
            }
        ),
        "ownership_changes": Each(
            {
                "kind": TEXT,
                "epoch": COUNT,
                "router_id": TEXT,
                "at": NUMBER,
                "reason": TEXT,
                "successor": Maybe(TEXT),
            }
        ),
        "store": {"mode": TEXT, "latency_ms": LIMIT, "failures": COUNT, "server": STORE_ONLY},
        "cluster": STORE_ONLY,
        "claims": STORE_ONLY,
        "totals": STORE_ONLY,
    },
)
