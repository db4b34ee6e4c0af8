"""The fault switches: what is ordered of which engine, and what the router owes.

A fault of the two legs is ordered for probes too: an engine that fails only what clients send, and nothing
that looks at it, would be a fault of the simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

PREFILL, DECODE = "prefill", "decode"


class Owed(StrEnum):
    """What becomes of the engine: ejected until it is repaired, kept, or avoided by partners.

    Who is avoided may be held for the moment of a probe.
    """

    OUT = "out"
    KEPT = "kept"
    EDGE = "edge"


@dataclass(frozen=True, slots=True)
class Switch:
    """`reasons`: at least one of these words stands in the reason of the verdict. `lossless`: no client sees
    anything of it."""

    name: str
    role: str
    orders: Sequence[Mapping[str, Any]]
    owed: Owed = Owed.OUT
    reasons: tuple[str, ...] = ()
    lossless: bool = False
    passes: bool = False
    """It is over by itself, too soon perhaps for `eject_after` to fail where another fault keeps them off."""
    shows_at_partners: bool = False
    """It is seen as failures of sound partners, who may be held until a probe has cleared them."""
    edge: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the order `edge` from the first producer, whose port is known only when the engines run."""

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> str:
        return f"{self.role}: {self.name}"


def legs(role: str, fault: str, **fields: Any) -> list[dict[str, Any]]:
    """The fault on one leg, and on what looks at the engine as that leg does."""
    return [{"fault": fault, "leg": leg, **fields} for leg in (role, "probe")]


def whole(fault: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"fault": fault, **fields}]


def of_health(fault: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"fault": fault, "leg": "health", **fields}]


FOR_GOOD_S = 60
"""Longer than any limit of the routers under test."""


def _of_both(role: str) -> list[Switch]:
    """Faults that either leg can have."""
    return [
        Switch("refuse connections", role, whole("refuse"), reasons=("connection",)),
        Switch("hang before the head", role, legs(role, "hang")),
        Switch("hang, health too", role, whole("hang")),
        Switch("answer much too late", role, legs(role, "slow", seconds=FOR_GOOD_S)),
        Switch("RST before the head", role, legs(role, "rst", after=0), reasons=("connection",)),
        Switch("500", role, legs(role, "status", status=500), reasons=("inference_status",)),
        Switch("503", role, legs(role, "status", status=503), reasons=("inference_status",)),
        Switch("429, retry after 1 s", role, legs(role, "status", status=429, retry_after=1), Owed.KEPT),
        Switch("400 to everything", role, legs(role, "status", status=400), reasons=("400",)),
        Switch("401 to everything", role, legs(role, "status", status=401), reasons=("401",)),
        Switch("404 to everything", role, legs(role, "status", status=404), reasons=("404",)),
        Switch("wrong model", role, whole("wrong_model"), reasons=("404", "model")),
        Switch("error object in a 200", role, legs(role, "error_in_200"), reasons=("inference_status",)),
        Switch("another process start", role, whole("process_start"), Owed.KEPT, lossless=True),
        Switch("core dies", role, whole("core_dead")),
        Switch("core stands still", role, whole("core_stopped")),
        Switch("process restarts, gone for 0.5 s", role, whole("restart", down_s=0.5), passes=True),
    ]


PREFILL_SWITCHES = [
    *_of_both(PREFILL),
    Switch("close in the middle of the answer", PREFILL, legs(PREFILL, "close", after=0)),
    Switch(
        "KV handoff missing", PREFILL, legs(PREFILL, "handoff", variant="missing"), reasons=("kv_handoff",)
    ),
    Switch(
        "KV handoff malformed", PREFILL, legs(PREFILL, "handoff", variant="no_host"), reasons=("kv_handoff",)
    ),
    Switch(
        "KV handoff of nobody",
        PREFILL,
        legs(PREFILL, "handoff", variant="unknown_engine"),
        shows_at_partners=True,
    ),
    Switch("finish reason abort", PREFILL, legs(PREFILL, "abort")),
    Switch("one byte per packet", PREFILL, legs(PREFILL, "one_byte"), Owed.KEPT, lossless=True),
]

DECODE_SWITCHES = [
    *_of_both(DECODE),
    Switch("first token much too late", DECODE, legs(DECODE, "slow_first_token", seconds=FOR_GOOD_S),
        reasons=("stream",)),
    Switch("no first token", DECODE, legs(DECODE, "silent_first_token"), reasons=("stream",)),
    Switch("stall after 2 tokens", DECODE, legs(DECODE, "stall", after=2), reasons=("stream",)),
    Switch("close after 2 tokens", DECODE, legs(DECODE, "close", after=2)),
    Switch("RST after 2 tokens", DECODE, legs(DECODE, "rst", after=2)),
    Switch("end without [DONE]", DECODE, legs(DECODE, "no_done"), reasons=("stream",)),
    Switch("error object after 2 tokens", DECODE, legs(DECODE, "error_in_200", after=2),
        reasons=("inference_status",)),
    Switch("finish reason abort", DECODE, legs(DECODE, "abort"), reasons=("stream",)),
    Switch("health much too late", DECODE, of_health("slow", seconds=FOR_GOOD_S), Owed.KEPT, lossless=True),
    Switch("one edge fails", DECODE, [], Owed.EDGE, edge={"how": "lost"}),
    Switch("one edge is silent", DECODE, [], Owed.EDGE, edge={"how": "silent"}),
    Switch("events of 64 KiB", DECODE, legs(DECODE, "huge", bytes=65536), Owed.KEPT),
    *(
        Switch(name, DECODE, legs(DECODE, fault, **fields), Owed.KEPT, lossless=True)
        for name, fault, fields in (
            ("CRLF line ends", "crlf", {}),
            ("CR line ends", "cr", {}),
            ("comments between events", "comments", {}),
            ("JSON over several lines", "multi_line", {}),
            ("UTF-8 split between packets", "split_utf8", {}),
            # Thousands of packets for one answer: a few of them show it, more are a load test.
            ("one byte per packet", "one_byte", {"count": 8}),
            ("packets cut at byte 300", "split", {"at": 300}),
        )
    ),
]  # fmt: skip

SWITCHES = [*PREFILL_SWITCHES, *DECODE_SWITCHES]
