"""What a router's documents must have for the commands that read them: looked at once, where they come in.

A proxy, another server or a router of another version may answer in its place, with 200 too. What is more
than this in a document is let through: a newer router may tell more. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from narwhal.model.shape import (
    COUNT,
    FINITE,
    FLAG,
    OBJECT,
    TEXT,
    THERE,
    Shape,
    by_name,
    is_,
    list_of,
    object_of,
    or_null,
)

NAME: Final = or_null(TEXT)
LIMIT: Final = or_null(FINITE)
STORE_ONLY: Final = is_("left to the store's own records", lambda value: False)


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
        return self.shape(document, "")


_ENGINE: Final = object_of(
    {
        "state": TEXT,
        "draining": FLAG,
        "accepts_new": FLAG,
        "ready_to_stop": FLAG,
        "resident": object_of({"prefill": COUNT, "decode": COUNT}),
        "deadline_at": LIMIT,
        "deadline_in_s": LIMIT,
        "old_process_start": THERE,
        "new_process_start": THERE,
        "checks": list_of(object_of({"name": TEXT, "outcome": TEXT, "detail": TEXT})),
        "error": TEXT,
    }
)
LIFECYCLE: Final = Page(
    "/narwhal/lifecycle",
    "narwhal.lifecycle",
    object_of(
        {
            "router": object_of({"controls_fleet": FLAG, "role": TEXT, "epoch": COUNT}),
            "engine_restart_policy": TEXT,
            "process_starts": OBJECT,
            "engines": by_name(_ENGINE, some=True),
            "wave": object_of(
                {"id": NAME, "active": FLAG, "readiness_withdrawn": FLAG, "ready_to_stop": FLAG}
            ),
        }
    ),
)

_LEASE: Final = object_of(
    {
        "state": TEXT,
        "holder": TEXT,
        "router_id": TEXT,
        "url": TEXT,
        "epoch": COUNT,
        "seq": COUNT,
        "ttl_s": LIMIT,
        "valid_for_s": LIMIT,
    },
    host=STORE_ONLY,
    acquired_age_s=STORE_ONLY,
    renewed_age_s=STORE_ONLY,
)
_ROUTER: Final = object_of(
    {
        "router_id": TEXT,
        "url": TEXT,
        "role": TEXT,
        "mirror_age_s": LIMIT,
        "version": TEXT,
        "ready_to_take": FLAG,
        "drift": list_of(TEXT),
        "seen_s": FINITE,
    },
    control_url=TEXT,
)
_CHANGE: Final = object_of(
    {"kind": TEXT, "epoch": COUNT, "router_id": TEXT, "at": FINITE, "reason": TEXT}, successor=TEXT
)
CLUSTER: Final = Page(
    "/narwhal/cluster",
    "narwhal.cluster",
    object_of(
        {
            "lease": _LEASE,
            "routers": list_of(_ROUTER),
            "ownership_changes": list_of(_CHANGE),
            "store": object_of({"mode": TEXT, "latency_ms": LIMIT, "failures": COUNT}, server=STORE_ONLY),
        },
        cluster=STORE_ONLY,
        claims=STORE_ONLY,
        totals=STORE_ONLY,
    ),
)
