"""The master of a service as its Sentinels tell it: asked beside the calls, the last good answer kept.

All Sentinels are asked at once. When more than half have answered, or nobody is left to wait for, the answer
of the highest configuration epoch counts: a Sentinel that was cut off tells an old master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from narwhal.errors import StoreError, StoreProtocolError
from narwhal.model.settings import StoreAddress
from narwhal.store.address import Place, Resolve, system_resolve
from narwhal.store.connection import CONNECT_TIMEOUT_S, Login, RedisConnection
from narwhal.store.quorum import Quorum
from narwhal.store.replies import pairs

CHECK_S: Final = 1.0
"""An open connection is compared with what the Sentinels say so often: an isolated master still answers."""
DOWN_AFTER_MS: Final = (1000, 1500)
"""Silence after which a master should be called down. Shorter, and a pause promotes a replica; longer, and a
promotion does not come within the 2.5 s that the default lease outlasts."""


@dataclass(frozen=True, slots=True)
class Told:
    """One Sentinel's word about the service. `guarded`: a Sentinel stands beside each node, and no more.
    `down_after_ms`: the silence after which it calls the master down, 0 where it does not tell."""

    config_epoch: int
    host: str
    port: int
    guarded: bool
    down_after_ms: int = 0


class Sentinels:
    """A `Whereabouts`. Used on one loop. `quorum` is told whether a majority of the replicas is enough."""

    def __init__(
        self,
        address: StoreAddress,
        login: Login,
        *,
        quorum: Quorum | None = None,
        resolve: Resolve = system_resolve,
    ) -> None:
        self.name = address.service
        self._resolve = resolve
        self._quorum = quorum or Quorum()
        self._doors = [_Door(StoreAddress(hosts=(host,)), address, login=login) for host in address.hosts]
        self._known: Place | None = None
        self._asking: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._error = ""
        self._down_after_ms: list[int] = []
        """What each Sentinel that was heard last time told."""

    async def current(self) -> Place:
        """The master to try. Waits only while none was ever known; raises OSError if nobody knows one."""
        if self._known is None:
            self.refresh()
        if self._known is None and self._asking is not None:
            await asyncio.shield(self._asking)
        if self._known is None:
            raise OSError(self._error or f"no Sentinel knows {self.name}")
        return self._known

    def holds(self, place: Place) -> bool:
        """Whether a connection to `place` may go on; looks again beside the call when it is time."""
        if asyncio.get_running_loop().time() - self._asked_at >= CHECK_S:
            self.refresh()
        return self._known is None or place == self._known

    def failed(self) -> None:
        self.refresh()

    def risks(self) -> tuple[str, ...]:
        return down_after_risk(self.name, self._down_after_ms)

    def refresh(self) -> None:
        """Asks the Sentinels unless that is under way."""
        if self._asking is None or self._asking.done():
            loop = asyncio.get_running_loop()
            self._asked_at, self._asking = loop.time(), loop.create_task(self._ask())

    async def _ask(self) -> None:
        asking = [asyncio.ensure_future(door.ask(self.name)) for door in self._doors]
        answers: list[Told] = []
        try:
            for done in asyncio.as_completed(asking):
                try:
                    answers.append(await done)
                except StoreError as error:
                    self._error = f"Sentinel: {error}"
                if 2 * len(answers) > len(asking):
                    break
            if answers:
                self._down_after_ms = [told.down_after_ms for told in answers]
                await self._take(max(answers, key=lambda told: told.config_epoch))
        finally:
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _take(self, told: Told) -> None:
        self._quorum.guarded = told.guarded
        try:
            found = await self._resolve(told.host, told.port)
        except OSError as error:
            self._error = f"{told.host} cannot be resolved: {error.strerror or error}"
            return
        self._known = (found[0], told.port)

    async def aclose(self) -> None:
        if self._asking is not None and not self._asking.done():
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        for door in self._doors:
            await door.aclose()


def connection_to(address: StoreAddress, login: Login, *, quorum: Quorum | None = None) -> RedisConnection:
    """A connection to the master, wherever `address` says that one hears of it. Opens nothing yet."""
    names = Sentinels(address, login, quorum=quorum) if address.service else None
    return RedisConnection(address, login, names=names)


class _Door:
    """The connection to one Sentinel. Without credentials first: most Sentinels have none."""

    def __init__(self, where: StoreAddress, store: StoreAddress, *, login: Login) -> None:
        self._open = RedisConnection(where, Login(login.client_name))
        named = StoreAddress(hosts=where.hosts, username=store.username)
        self._named = RedisConnection(named, login) if login.password else None

    async def ask(self, service: str) -> Told:
        """Raises StoreError."""
        try:
            return await _told(self._open, service)
        except StoreError as error:
            if self._named is None or "NOAUTH" not in str(error):
                raise
        return await _told(self._named, service)

    async def aclose(self) -> None:
        for connection in filter(None, (self._open, self._named)):
            await connection.aclose()


async def _told(sentinel: RedisConnection, service: str) -> Told:
    async def ask(what: str) -> Any:
        return await sentinel.command("SENTINEL", what, service, timeout_s=CONNECT_TIMEOUT_S)

    answers = [await ask(what) for what in ("MASTER", "SLAVES", "SENTINELS")]
    return read(answers, door=sentinel.place[0])


def read(answers: Sequence[Any], *, door: str) -> Told:
    """One Sentinel's answers about master, replicas and the other Sentinels, given at the address `door`.

    Raises StoreProtocolError: whatever answers there may be no Sentinel, or one that has half forgotten.
    """
    master, replicas, others = answers
    try:
        fields = _fields(master)
        nodes = [fields, *(_fields(row) for row in replicas)]
        return Told(
            int(fields.get("config-epoch", "0")),
            fields["ip"],
            int(fields["port"]),
            guarded=guarded(nodes, [_fields(row) for row in others], door=door),
            down_after_ms=int(fields.get("down-after-milliseconds", "0")),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        shown = repr(master)[:200]
        raise StoreProtocolError(
            f"the Sentinel at {door} gave an answer that cannot be read: {shown} ({error!r})"
        ) from error


def down_after_risk(service: str, told_ms: Sequence[int]) -> tuple[str, ...]:
    """One sentence where a Sentinel waits too short or too long, with the setting that mends it."""
    least, most = DOWN_AFTER_MS
    odd = [f"{one}" for one in sorted(set(told_ms)) if one and not least <= one <= most]
    if not odd:
        return ()
    return (
        f"Sentinels call the master of {service} down after {' or '.join(odd)} ms: too short promotes "
        "a replica at a mere pause, too long outlasts the lease; "
        f"set down-after-milliseconds {least} to {most}",
    )


def guarded(nodes: Sequence[dict[str, str]], others: Sequence[dict[str, str]], *, door: str) -> bool:
    """Whether one Sentinel stands beside each node, and none elsewhere. `others`: all but the one asked,
    which does not tell its own address: that is the one where it was reached.

    A node or Sentinel that goes by another address in what the Sentinels tell counts as not guarded: then
    all replicas must confirm, which is slower to go on without one of them, and never wrong.
    """
    beside = {door, *(row.get("ip") for row in others)}
    return len(others) + 1 == len(nodes) and {row.get("ip") for row in nodes} <= beside


def _fields(row: Sequence[bytes]) -> dict[str, str]:
    return pairs([word.decode() for word in row])
