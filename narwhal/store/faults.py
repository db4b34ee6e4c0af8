"""Error replies of Redis -> what they mean for us. Classified by substring: 6.2 wraps script errors."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from redis import exceptions as driver

from narwhal.errors import StoreDamaged, StoreError, StoreProtocolError, StoreUnreachable


class ReplyKind(StrEnum):
    """Error replies with a meaning of their own. Order matters: a wrapped error may name two."""

    NOSCRIPT = "NOSCRIPT"
    READONLY = "READONLY"
    NOREPLICAS = "NOREPLICAS"
    OOM = "OOM"
    LOADING = "LOADING"
    MASTERDOWN = "MASTERDOWN"
    BUSY = "BUSY"
    MISCONF = "MISCONF"
    TRYAGAIN = "TRYAGAIN"
    UNBLOCKED = "UNBLOCKED"
    NOPERM = "NOPERM"
    NOAUTH = "NOAUTH"
    WRONGPASS = "WRONGPASS"
    CLUSTERDOWN = "CLUSTERDOWN"
    MOVED = "MOVED"
    WRONGTYPE = "WRONGTYPE"
    OTHER = ""


# redis-py takes the code off the message when it has a class for it.
_CLASSES: Final = (
    (driver.NoScriptError, ReplyKind.NOSCRIPT),
    (driver.ReadOnlyError, ReplyKind.READONLY),
    (driver.OutOfMemoryError, ReplyKind.OOM),
    (driver.BusyLoadingError, ReplyKind.LOADING),
    (driver.MasterDownError, ReplyKind.MASTERDOWN),
    (driver.TryAgainError, ReplyKind.TRYAGAIN),
    (driver.NoPermissionError, ReplyKind.NOPERM),
    (driver.AuthenticationError, ReplyKind.WRONGPASS),
    (driver.ClusterDownError, ReplyKind.CLUSTERDOWN),
    (driver.MovedError, ReplyKind.MOVED),
)

_NO_ANSWER: Final = frozenset(
    {
        *(ReplyKind.READONLY, ReplyKind.NOREPLICAS, ReplyKind.OOM, ReplyKind.LOADING, ReplyKind.MASTERDOWN),
        *(ReplyKind.BUSY, ReplyKind.MISCONF, ReplyKind.TRYAGAIN, ReplyKind.CLUSTERDOWN, ReplyKind.UNBLOCKED),
    }
)
"""The server could not do it now: never a demotion by itself."""

ELSEWHERE: Final = frozenset({ReplyKind.READONLY, ReplyKind.MASTERDOWN, ReplyKind.UNBLOCKED})
"""The master is somewhere else: drop the connection and resolve it again."""


_ODD_VALUES: Final = ("attempt to ", "bad argument #")
"""How a script ends that met a value which no router wrote."""

DEMOTED: Final = "cannot be used with replica instances"
"""WAIT says so; every write would be READONLY."""


def kind_of(error: Exception) -> ReplyKind:
    for cls, kind in _CLASSES:
        if isinstance(error, cls):
            return kind
    if not isinstance(error, driver.ResponseError):
        return ReplyKind.OTHER
    text = str(error)
    if DEMOTED in text:
        return ReplyKind.READONLY
    return next((kind for kind in ReplyKind if kind and kind in text), ReplyKind.OTHER)


def translated(what: str, error: Exception) -> StoreError:
    """The error reply to `what` (a command's name) as ours: no answer, or a server that cannot be used."""
    kind = kind_of(error)
    detail = f"{kind} {error}" if kind and kind not in str(error) else str(error)
    if kind in _NO_ANSWER:
        return StoreUnreachable(f"{what}: {detail}", kind=kind)
    if kind is ReplyKind.MOVED:
        return StoreProtocolError(
            f"{what}: Redis Cluster is not supported: one master holds all keys ({detail})"
        )
    if kind in (ReplyKind.NOPERM, ReplyKind.NOAUTH, ReplyKind.WRONGPASS):
        return StoreProtocolError(f"{what}: the server refuses this user (see configs/redis.acl): {detail}")
    if kind is ReplyKind.WRONGTYPE or any(words in detail for words in _ODD_VALUES):
        return StoreDamaged(f"{what}: {detail}")
    return StoreProtocolError(f"{what}: {detail}")
