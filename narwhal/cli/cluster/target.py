"""Where a command looks: the records in the store, or one router's own document."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from narwhal.cli.asking import DEFAULT_ROUTER, control_key, named_router
from narwhal.config.options import GivenOptions, given_options
from narwhal.config.secret import secret
from narwhal.errors import ConfigError, StoreProtocolError
from narwhal.runtime.records import ClusterRecords, RecordReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PREFIX: Final = "narwhal:{%s}:"


@dataclass(frozen=True, slots=True)
class Target:
    """`router`: the URL of one router, "" where the store is read. `cluster`: "" where it was not named."""

    given: GivenOptions
    store_password: str
    router: str
    cluster: str
    key: str

    @property
    def reads_store(self) -> bool:
        return not self.router


def target_of(options: argparse.Namespace, env: Mapping[str, str]) -> Target:
    """A named router before the store, the store before the router on this host. Raises ConfigError."""
    words = ["--fleet", "-"]
    for name in ("redis_url", "redis_password_env", "cluster"):
        if value := getattr(options, name, None):
            words += [f"--{name.replace('_', '-')}", value]
    given = given_options(words, env)
    password = given.store_password
    if name := given.value("redis_password_env"):
        password = secret(env, name, named_by="--redis-password-env")
    return Target(
        given=given,
        store_password=password,
        router=_router(options.router, given, env=env),
        cluster=given.value("cluster") or "",
        key=control_key(getattr(options, "control_key_env", None), env),
    )


def _router(named: str | None, given: GivenOptions, *, env: Mapping[str, str]) -> str:
    """A --router before the store, the store before the router of the environment."""
    if named is None and given.store is not None:
        return ""
    return named_router(named, env) or DEFAULT_ROUTER


@asynccontextmanager
async def reader_of(target: Target) -> AsyncIterator[RecordReader]:
    if target.given.store is None:
        raise ConfigError("this needs the store: pass --redis-url (or set NARWHAL_REDIS_URL)")
    reader = RecordReader(target.given.store, target.store_password)
    try:
        yield reader
    finally:
        await reader.aclose()


async def named_cluster(target: Target, reader: RecordReader) -> str:
    """The cluster that was named, else the only one in the store. Raises ConfigError."""
    if target.cluster:
        return target.cluster
    try:
        found = await reader.clusters()
    except StoreProtocolError as error:
        raise ConfigError(f"name the cluster with --cluster: looking for it failed: {error}") from None
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(f"the store holds no cluster (looked for {PREFIX % '*'}lease)")
    raise ConfigError(f"the store holds {len(found)} clusters, name one with --cluster: {', '.join(found)}")


async def read_records(target: Target, reader: RecordReader) -> ClusterRecords:
    """The records of the cluster. Raises ConfigError where nothing of it is stored, StoreError."""
    records = await reader.read(await named_cluster(target, reader))
    if records.known:
        return records
    message = f"no such cluster: nothing is stored under {PREFIX % records.cluster}"
    try:
        others = await reader.clusters()
    except StoreProtocolError:
        raise ConfigError(message) from None
    raise ConfigError(f"{message}; the store holds {', '.join(others) if others else 'no cluster at all'}")
