"""What an operator may order: the owner hands over (yield), a held lease is ended (depose)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from narwhal.cli.asking import CommandFailed, Order, order, order_owner
from narwhal.cli.cluster.document import lease_fields
from narwhal.cli.cluster.tables import seconds
from narwhal.cli.cluster.target import Target, named_cluster, reader_of
from narwhal.cli.told import CLUSTER
from narwhal.errors import ConfigError
from narwhal.model.lease import LeaseState, LeaseVersion, LeaseView
from narwhal.runtime.records import RecordReader, public_holder

YIELD: Final = "/narwhal/lifecycle/yield"
DEPOSE_TRIES: Final = 5

Document = dict[str, Any]


async def owner_url(target: Target) -> str:
    """Where the owner takes orders, from its lease. Raises CommandFailed while nobody owns."""
    async with reader_of(target) as reader:
        cluster = await named_cluster(target, reader)
        lease = await reader.lease(cluster)
    if lease.state is not LeaseState.HELD:
        state = lease.state.value if lease.state else "nothing is stored"
        raise CommandFailed(f"cluster {cluster} has no owner now (lease: {state})")
    return (lease.fields or {}).get("control_url") or lease.url


async def hand_over(target: Target, successor: str | None) -> tuple[str, Document]:
    """Orders the owner to yield; its URL and its cluster document. Raises CommandFailed.

    With a store its record says who owns, whatever an answer says; without one the answer does.
    """
    given = Order(YIELD, {"to": successor}, told=CLUSTER)
    if target.reads_store:
        answer = await order(url := await owner_url(target), given, key=target.key)
        if answer.status == 503 and (now := await owner_url(target)) != url:
            answer = await order(now, given, key=target.key)
    else:
        answer = await order_owner(target.router, given, key=target.key)
    if answer.status == 200:
        return answer.url, answer.body
    raise CommandFailed(f"{answer.url} refused ({answer.status}): {answer.why}")


async def depose(target: Target, reason: str, *, expected: str, confirm: Callable[[str, str], bool]) -> str:
    """Releases a held lease for its owner by compare-and-set; the holder whose lease it was.

    `expected`: the holder as `status` shows it, with `/seq` behind it only that very version; "": `confirm`
    is asked (question, the owner's ID). Raises CommandFailed where the record is another one.
    """
    async with reader_of(target) as reader:
        cluster = await named_cluster(target, reader)
        lease, _ = _held(await reader.lease(cluster))
        if not expected:
            if not confirm(_question(cluster, lease), lease.owner):
                raise CommandFailed("nothing was changed")
            expected = public_holder(lease)
        return await _released(reader, cluster, expected=expected, reason=reason)


def _held(lease: LeaseView) -> tuple[LeaseView, LeaseVersion]:
    if lease.state is not LeaseState.HELD or lease.version is None:
        raise CommandFailed("the lease is not held: nothing was changed")
    return lease, lease.version


async def _released(reader: RecordReader, cluster: str, *, expected: str, reason: str) -> str:
    """An owner that renews changes its version every second: only the same holder is tried again."""
    for _ in range(DEPOSE_TRIES):
        lease, version = _held(await reader.lease(cluster))
        holder = public_holder(lease)
        if expected not in (holder, f"{holder}/{version.seq}"):
            raise CommandFailed(f"the lease is held by {holder}/{version.seq} now: nothing was changed")
        if await reader.depose(cluster, version, reason=reason):
            return holder
    raise CommandFailed("the owner renewed between each look and the order: nothing was changed, try again")


def _question(cluster: str, lease: LeaseView) -> str:
    fields = lease_fields(lease)
    return (
        f"cluster {cluster}: {lease.owner} holds epoch {lease.epoch}, renewed "
        f"{seconds(fields['renewed_age_s'])} ago ({public_holder(lease)}/{fields['seq']}).\n"
        f"A living owner stops at once, and requests fail for {lease.ttl_ms / 1000:g} s and more: "
        "`narwhal cluster yield` hands over without that.\n"
        "Type the owner's ID to depose it: "
    )


def asked(question: str, owner: str) -> bool:
    """Whether a person typed the owner's ID. Raises ConfigError without a terminal."""
    if not sys.stdin.isatty():
        raise ConfigError("nobody is there to be asked: pass --expected HOLDER (see narwhal cluster status)")
    return input(question).strip() == owner
