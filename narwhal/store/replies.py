"""Reply arrays of the scripts -> values of `narwhal.model`. The only place that knows their order.

Every decoder raises StoreProtocolError, naming script and reply, on an answer it cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from narwhal.errors import StoreProtocolError
from narwhal.model.handoff import LogPosition
from narwhal.model.lease import (
    Acquired,
    AcquireReply,
    Appended,
    AppendReply,
    BadFloor,
    HeldBy,
    Incarnation,
    LeaseState,
    LeaseVersion,
    LeaseView,
    Lost,
    NewServer,
    NothingStored,
    OldEpoch,
    Published,
    PublishReply,
    Reinstated,
    Renewed,
    RenewReply,
    Stale,
    TopIs,
)

R = TypeVar("R")
Word = TypeVar("Word", str, bytes)

_STATUS = re.compile(rb"[A-Z]{1,16}")
_HEX40 = re.compile(r"[0-9a-f]{40}")
_ROLES = ("master", "slave")


def decoded(script: str, reply: Sequence[bytes], *, decode: Callable[[str, list[str]], R]) -> R:
    """Applies `decode(status, details)`; malformed answers become StoreProtocolError."""
    try:
        words = [_text(item) for item in reply]
        return decode(words[0], words[1:])
    except (ValueError, IndexError, KeyError, AttributeError, TypeError) as error:
        # Not chained, not quoted: the words of an error repeat the value that could not be read.
        found = f"{_shape(reply)} ({type(error).__name__})"
        raise StoreProtocolError(f"{script} gave an answer that cannot be read: {found}") from None


def _shape(reply: object) -> str:
    """Status word and number of details: what follows may hold a token, which nobody is to be shown."""
    if not isinstance(reply, list | tuple):
        return type(reply).__name__
    status = reply[0] if reply and isinstance(reply[0], bytes) else b""
    shown = status.decode() if _STATUS.fullmatch(status) else "no status"
    return f"{shown} and {max(0, len(reply) - 1)} details"


def _text(item: bytes) -> str:
    return item.decode("utf-8", "surrogateescape")


def pairs(items: Sequence[Word]) -> dict[Word, Word]:
    """Flat name, value, name, value... -> mapping. Raises ValueError on an odd number."""
    if len(items) % 2:
        raise ValueError("odd number of items")
    return dict(zip(items[::2], items[1::2], strict=True))


def view(status: str, details: list[str]) -> LeaseView:
    run_id, replid, role, replicas, now_ms, epoch_key, log_top = details[:7]
    inc = _incarnation(run_id, replid, role=role)
    fields = pairs(details[7:])
    if status == "NONE":
        fields = {}
    elif status != "OK":
        raise ValueError(f"unknown status {status}")
    return LeaseView(
        inc=inc,
        role=role,
        epoch_key=int(epoch_key),
        now_ms=int(now_ms),
        connected_replicas=int(replicas),
        log_top=LogPosition.parse(log_top),
        **_record(fields) if fields else {},  # type: ignore[arg-type]
    )


def _incarnation(run_id: str, replid: str, *, role: str) -> Incarnation:
    """A proxied or managed server that hides INFO cannot carry the lease: the start is refused."""
    if not (_HEX40.fullmatch(run_id) and _HEX40.fullmatch(replid) and role in _ROLES):
        raise StoreProtocolError(
            "the server does not tell run_id, master_replid and role in INFO (a proxy or managed service?): "
            f"run_id {run_id!r}, master_replid {replid!r}, role {role!r}"
        )
    return Incarnation(run_id, replid)


def _record(fields: Mapping[str, str]) -> dict[str, object]:
    return {
        "state": LeaseState(fields["state"]),
        "version": LeaseVersion(fields["token"], int(fields["seq"])),
        "epoch": int(fields["epoch"]),
        "owner": fields.get("owner", ""),
        "url": fields.get("url", ""),
        "ttl_ms": int(fields["ttl_ms"]),
        "acquired_ms": int(fields.get("acquired_ms", "0")),
        "renewed_ms": int(fields.get("renewed_ms", "0")),
        "record_inc": fields.get("inc", ""),
        "sure": fields.get("sure") == "1",
        "successor": fields.get("successor", ""),
        "reason": fields.get("reason", ""),
        "prior_epoch": int(fields.get("prior_epoch", "0")),
        "prior_reason": fields.get("prior_reason", ""),
        "replicas": int(fields.get("replicas", "0")),
        "deposed": fields.get("deposed") == "1",
        "fields": dict(fields),
    }


def claimed(status: str, _details: list[str]) -> bool:
    return {"OK": True, "EXISTS": False}[status]


def changed(status: str, _details: list[str]) -> bool:
    """True: done; False: what is stored is another by now."""
    return {"OK": True, "CHANGED": False}[status]


def acquired(status: str, details: list[str]) -> AcquireReply:
    match status:
        case "OK" | "AGAIN":
            epoch, life, replicas = details
            return Acquired(int(epoch), life, again=status == "AGAIN", replicas=int(replicas))
        case "HELD":
            owner, epoch = details
            return HeldBy(owner, int(epoch))
        case "NEWSERVER":
            return NewServer(details[0])
        case "NONE":
            return NothingStored()
        case "BADFLOOR":
            return BadFloor()
    raise ValueError(f"unknown status {status}")


def renewed(status: str, details: list[str]) -> RenewReply:
    match status:
        case "OK":
            return Renewed(details[0], pairs(details[2:]), int(details[1]))
        case "REINSTATED":
            return Reinstated(details[0], int(details[1]))
        case "STALE":
            return Stale()
    return _lost(status, details)


def released(status: str, details: list[str]) -> bool | Lost:
    return True if status == "OK" else _lost(status, details)


def appended(status: str, details: list[str]) -> AppendReply:
    match status:
        case "OK":
            return Appended(_id(details[0]))
        case "TOP":
            return TopIs(_id(details[0]))
    return _lost(status, details)


def published(status: str, details: list[str]) -> PublishReply:
    match status:
        case "OK":
            return Published(_id(details[0]))
        case "OLD":
            return OldEpoch(int(details[0]))
    return _lost(status, details)


def _id(text: str) -> str:
    return str(LogPosition.parse(text))


def _lost(status: str, details: list[str]) -> Lost:
    if status != "LOST":
        raise ValueError(f"unknown status {status}")
    state, epoch, owner = details
    return Lost(state, int(epoch), owner)
