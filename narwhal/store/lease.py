"""LeaseStore over the lease scripts (cluster.md section 4). One runner = one connection, never shared."""

from __future__ import annotations

import logging

from narwhal.model.lease import AcquireReply, LeaseVersion, LeaseView, Lost, OwnerMeta, RenewReply
from narwhal.model.store_call import AcquireRequest, RenewRequest
from narwhal.store import replies
from narwhal.store.keys import Keys
from narwhal.store.quorum import Quorum
from narwhal.store.scripts import Argument, Reply, ScriptRunner

log = logging.getLogger("narwhal.store")


class ScriptLeaseStore:
    """The port `LeaseStore`, on Redis or on the in-memory server, whichever `runner` speaks to."""

    __slots__ = ("_damaged", "_keys", "_quorum", "_runner")

    def __init__(self, runner: ScriptRunner, cluster: str, *, quorum: Quorum | None = None) -> None:
        """`quorum`: what all stores of one router share."""
        self._runner = runner
        self._keys = Keys(cluster)
        self._quorum = quorum or Quorum()
        self._damaged = False

    async def peek(self, *, timeout_s: float) -> LeaseView:
        reply = await self._runner.run("lease_peek", self._keys.of("lease_peek"), timeout_s=timeout_s)
        view = replies.decoded("lease_peek", reply, decode=replies.view, keys=self._keys)
        self._quorum.peeked(view)
        if view.epoch_key_damaged and not self._damaged:
            key = self._keys["epoch"]
            log.warning("%s holds no epoch that was ever granted: left, the next owner writes it anew", key)
        self._damaged = view.epoch_key_damaged
        return view

    async def claim(self, nonce: str, *, floor: int, ttl_ms: int, timeout_s: float) -> bool:
        keys = self._keys.of("lease_claim")
        reply = await self._runner.run("lease_claim", keys, args=(nonce, floor, ttl_ms), timeout_s=timeout_s)
        return replies.decoded("lease_claim", reply, decode=replies.claimed, keys=self._keys)

    async def acquire(self, request: AcquireRequest, *, timeout_s: float) -> AcquireReply:
        args: list[Argument] = [request.token, str(request.expected), request.inc, request.floor]
        args += [request.ttl_ms, self._quorum.highest, *meta_fields(request.meta)]
        keys = self._keys.of("lease_acquire")

        def needs(reply: Reply) -> int:
            return self._quorum.needed_after(self._acquired(reply))

        reply = await self._runner.run_confirmed(
            "lease_acquire", keys, args=args, needs=needs, timeout_s=timeout_s
        )
        return self._acquired(reply)

    async def renew(self, request: RenewRequest, *, timeout_s: float) -> RenewReply:
        args: list[Argument] = [request.token, request.epoch, request.seq, request.life]
        args += [request.ttl_ms, self._quorum.highest, *meta_fields(request.meta)]
        keys = self._keys.of("lease_renew")

        def needs(reply: Reply) -> int:
            return self._quorum.needed_after(self._renewed(reply))

        reply = await self._runner.run_confirmed(
            "lease_renew", keys, args=args, needs=needs, timeout_s=timeout_s
        )
        return self._renewed(reply)

    async def release(
        self, held: str | LeaseVersion, *, reason: str, successor: str = "", timeout_s: float
    ) -> bool | Lost:
        token, version = (held, "") if isinstance(held, str) else (held.token, str(held))
        keys = self._keys.of("lease_release")
        reply = await self._runner.run(
            "lease_release", keys, args=(token, version, reason, successor), timeout_s=timeout_s
        )
        return replies.decoded("lease_release", reply, decode=replies.released, keys=self._keys)

    async def depose(self, expected: LeaseVersion, *, reason: str, timeout_s: float) -> bool:
        keys = self._keys.of("lease_depose")
        reply = await self._runner.run(
            "lease_depose", keys, args=(str(expected), reason), timeout_s=timeout_s
        )
        return replies.decoded("lease_depose", reply, decode=replies.changed, keys=self._keys)

    def _acquired(self, reply: Reply) -> AcquireReply:
        return replies.decoded("lease_acquire", reply, decode=replies.acquired, keys=self._keys)

    def _renewed(self, reply: Reply) -> RenewReply:
        return replies.decoded("lease_renew", reply, decode=replies.renewed, keys=self._keys)

    async def aclose(self) -> None:
        await self._runner.aclose()


def meta_fields(meta: OwnerMeta) -> list[str]:
    """Flat field, value list of what a holder writes about itself. `owner` is the router ID."""
    fields = {
        "owner": meta.router_id,
        "url": meta.url,
        "control_url": meta.control_url,
        **meta.process.record(),
        "version": meta.version,
    }
    return [item for pair in fields.items() for item in pair]
