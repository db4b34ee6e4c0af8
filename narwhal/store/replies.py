"""Reply arrays of the scripts -> values of `narwhal.model`. The only place that knows their order.

Every decoder raises StoreDamaged, naming script, key and shape of the reply, on an answer it cannot read:
the scripts are ours, so what is odd in an answer was stored by somebody else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from narwhal.errors import StoreDamaged, StoreProtocolError
from narwhal.model.handoff import LogPosition
from narwhal.model.lease import (
    MAX_EPOCH,
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
from narwhal.store.keys import SCRIPT_KEYS, Keys
from narwhal.store.numbers import MOST_EXACT, MOST_REPLICAS, MOST_TTL_MS, Damage, stored, whole

R = TypeVar("R")
Word = TypeVar("Word", str, bytes)

_STATUS = re.compile(rb"[A-Z]{1,16}")
_HEX40 = re.compile(r"[0-9a-f]{40}")
_ROLES = ("master", "slave")


def decoded(
    script: str, reply: Sequence[bytes], *, decode: Callable[[str, list[str]], R], keys: Keys | None = None
) -> R:
    """Applies `decode(status, details)`; malformed answers become StoreDamaged. `keys` names the key."""
    try:
        words = [_text(item) for item in reply]
        return decode(words[0], words[1:])
    except (ValueError, IndexError, KeyError, AttributeError, TypeError) as error:
        # Not chained, not quoted: the words of an error repeat the value that could not be read.
        where = _where(script, error, keys=keys or Keys("..."))
        found = f"{_shape(reply)} ({type(error).__name__})"
        raise StoreDamaged(f"{script} gave an answer that cannot be read: {where}{found}") from None


def _where(script: str, error: Exception, *, keys: Keys) -> str:
    if isinstance(error, Damage):
        return f"{keys[error.key]}: {error.what}; "
    if script not in SCRIPT_KEYS:
        return ""
    return f"see {', '.join(keys.of(script))}; "


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
    known = _epoch_key(epoch_key)
    return LeaseView(
        inc=inc,
        role=role,
        epoch_key=known or 0,
        epoch_key_damaged=known is None,
        now_ms=whole(now_ms),
        connected_replicas=whole(replicas),
        log_top=_position(log_top),
        **_record(fields) if fields else {},  # type: ignore[arg-type]
    )


def _epoch_key(text: str) -> int | None:
    """None: it counts for nothing, as if it had been deleted; the scripts see it so too."""
    try:
        return whole(text, most=MAX_EPOCH)
    except ValueError:
        return None


def _position(text: str) -> LogPosition:
    """Raises Damage for an id whose epoch no owner can have had."""
    try:
        position = LogPosition.parse(text)
    except ValueError:
        raise Damage("log", "its last id is none of ours") from None
    if position.epoch > MAX_EPOCH:
        raise Damage("log", f"the epoch of its last id is above {MAX_EPOCH}")
    return position


def _incarnation(run_id: str, replid: str, *, role: str) -> Incarnation:
    """A proxied or managed server that hides INFO cannot carry the lease: the start is refused."""
    if not (_HEX40.fullmatch(run_id) and _HEX40.fullmatch(replid) and role in _ROLES):
        raise StoreProtocolError(
            "the server does not tell run_id, master_replid and role in INFO (a proxy or managed service?): "
            f"run_id {run_id!r}, master_replid {replid!r}, role {role!r}"
        )
    return Incarnation(run_id, replid)


def _record(fields: Mapping[str, str]) -> dict[str, object]:
    try:
        state, token = LeaseState(fields["state"]), fields["token"]
    except (KeyError, ValueError):
        raise Damage("lease", "state or token is missing or unknown") from None

    def number(name: str, default: str = "", *, most: int = MOST_EXACT) -> int:
        return stored("lease", fields.get(name, default), field=name, most=most)

    return {
        "state": state,
        "version": LeaseVersion(token, number("seq")),
        "epoch": number("epoch", most=MAX_EPOCH),
        "owner": fields.get("owner", ""),
        "url": fields.get("url", ""),
        "ttl_ms": number("ttl_ms", most=MOST_TTL_MS),
        "acquired_ms": number("acquired_ms", "0"),
        "renewed_ms": number("renewed_ms", "0"),
        "record_inc": fields.get("inc", ""),
        "sure": fields.get("sure") == "1",
        "successor": fields.get("successor", ""),
        "reason": fields.get("reason", ""),
        "prior_epoch": number("prior_epoch", "0", most=MAX_EPOCH),
        "prior_reason": fields.get("prior_reason", ""),
        "prior_owner": fields.get("prior_owner", ""),
        "prior_released_ms": number("prior_released_ms", "0"),
        "released_ms": number("released_ms", "0"),
        "replicas": number("replicas", "0", most=MOST_REPLICAS),
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
            return Acquired(_epoch(epoch), life, again=status == "AGAIN", replicas=_replicas(replicas))
        case "HELD":
            owner, epoch = details
            return HeldBy(owner, _epoch(epoch))
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
            return Renewed(details[0], pairs(details[2:]), _replicas(details[1]))
        case "REINSTATED":
            return Reinstated(details[0], _replicas(details[1]))
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
            return OldEpoch(stored("log", details[0], field="the epoch of its last id", most=MAX_EPOCH))
    return _lost(status, details)


def _id(text: str) -> str:
    return str(_position(text))


def _lost(status: str, details: list[str]) -> Lost:
    if status != "LOST":
        raise ValueError(f"unknown status {status}")
    state, epoch, owner = details
    return Lost(state, _epoch(epoch), owner)


def _epoch(text: str) -> int:
    return stored("lease", text, field="epoch", most=MAX_EPOCH)


def _replicas(text: str) -> int:
    return stored("lease", text, field="replicas", most=MOST_REPLICAS)
