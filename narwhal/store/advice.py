"""What a router says about its server at start (cluster.md section 7): refusals and warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from narwhal.errors import StoreProtocolError
from narwhal.store.connection import RedisConnection
from narwhal.store.quorum import Quorum

OLDEST: Final = (6, 2)
UNCONFIRMED: Final = (
    "--redis-min-replicas 0: no replica confirms the lease; a promotion may lose it and make two owners"
)
_SECTIONS: Final = ("server", "memory", "persistence", "replication")


async def inspect_server(connection: RedisConnection, *, quorum: Quorum, timeout_s: float) -> tuple[str, ...]:
    """Warning sentences about the server, may be empty. Five calls of `timeout_s` each.

    Raises StoreProtocolError for a server that cannot carry the lease, StoreUnreachable.
    """
    info: dict[str, str] = {}
    for section in _SECTIONS:
        info |= parse_info(await connection.command("INFO", section, timeout_s=timeout_s))
    if reason := refusal(info):
        raise StoreProtocolError(reason)
    confirmation = await _confirmation(connection, info, quorum=quorum, timeout_s=timeout_s)
    return (*warnings(info), *connection.risks(), *confirmation)


async def _confirmation(
    connection: RedisConnection, info: Mapping[str, str], *, quorum: Quorum, timeout_s: float
) -> tuple[str, ...]:
    """What `--redis-min-replicas` means on this server. Raises StoreProtocolError where WAIT is refused."""
    refused = ""
    try:
        await connection.command("WAIT", 0, 1, timeout_s=timeout_s)
    except StoreProtocolError as error:
        refused = str(error)
    if quorum.fixed == 0:
        return (UNCONFIRMED + (f" (and the server refuses WAIT: {refused})" if refused else ""),)
    if refused:
        raise StoreProtocolError(
            "the server refuses WAIT, so no replica can confirm the lease: permit it, or say "
            f"--redis-min-replicas 0 to go without ({refused})"
        )
    connected = int(info.get("connected_slaves", "0"))
    if quorum.fixed and quorum.fixed > connected:
        return (
            f"--redis-min-replicas {quorum.fixed}, and the store has {connected} replicas: "
            "nothing is confirmed, and nobody owns, until more are there",
        )
    return ()


def parse_info(text: bytes) -> dict[str, str]:
    """`name:value` lines of INFO; comments and blank lines are left out."""
    lines = text.decode("utf-8", "replace").splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}


def refusal(info: Mapping[str, str]) -> str:
    """Why this server must not be used, "" if it may."""
    if info.get("redis_mode") == "cluster" or info.get("server_mode") == "cluster":
        return "Redis Cluster is not supported: use one server or Sentinel"
    version = info.get("redis_version", "")
    if _release(version) < OLDEST:
        return f"Redis 6.2 or later, or Valkey, is needed; this server is {version or 'of unknown version'}"
    return ""


def warnings(info: Mapping[str, str]) -> tuple[str, ...]:
    """One sentence each: what is risky, and the setting that mends it."""
    return tuple(sentence for sentence in (_eviction(info), _persistence(info), _replicas(info)) if sentence)


def _release(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else (0, 0)


def _eviction(info: Mapping[str, str]) -> str:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or policy.startswith("volatile-"):
        return ""
    return (
        f"the store's maxmemory-policy is {policy}: it may evict the lease; "
        "set maxmemory-policy noeviction or a volatile one"
    )


def _persistence(info: Mapping[str, str]) -> str:
    if info.get("aof_enabled", "0") != "0":
        return ""
    return (
        "the store has no append-only file: after its restart the handoff document may be lost or old; "
        "set appendonly yes"
    )


def _replicas(info: Mapping[str, str]) -> str:
    if info.get("connected_slaves", "0") == "0" or "min_slaves_good_slaves" in info:
        return ""
    return (
        "the store has replicas, but an isolated master would still take writes; set min-replicas-to-write 1"
    )
