"""Where the server is: names resolved outside every deadline, last good addresses kept.

A resolver that hangs must not eat the time of a renewal, and a name server that is down must not cost
the lease while the server's address is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from narwhal.names import addresses_of

Place = tuple[str, int]
"""Address and port."""
Resolve = Callable[[str, int], Awaitable[tuple[str, ...]]]


class Whereabouts(Protocol):
    """Where the master is: by name, or as Sentinels tell. Used on one loop."""

    @property
    def name(self) -> str:
        """For messages, and what a certificate must be for."""

    async def current(self) -> Place:
        """The place to try. Waits only while none was ever known; raises OSError if none is."""

    def holds(self, place: Place) -> bool:
        """Whether an open connection to `place` may go on."""

    def failed(self) -> None:
        """The current place did not work: another one's turn, and a fresh look beside the calls."""

    def refresh(self) -> None:
        """A fresh look beside the calls."""

    def risks(self) -> tuple[str, ...]:
        """Warning sentences about whoever tells it, may be empty."""

    async def aclose(self) -> None: ...


async def system_resolve(host: str, port: int) -> tuple[str, ...]:
    """Addresses of a name in the system's order, without repeats. Raises OSError."""
    return await addresses_of(host)


class Addresses:
    """Addresses of one name; used on one loop. `current` rotates after each `failed`."""

    def __init__(self, host: str, port: int, *, resolve: Resolve = system_resolve) -> None:
        self.name = f"{host}:{port}"
        self.host = host
        self.port = port
        self._resolve = resolve
        self._known: tuple[str, ...] = ()
        self._resolving: asyncio.Task[None] | None = None
        self._error = ""

    async def current(self) -> Place:
        """The place to try. Waits only while none was ever known; raises OSError if resolving failed."""
        if not self._known:
            self.refresh()
        if not self._known and self._resolving:
            await asyncio.shield(self._resolving)
        if not self._known:
            raise OSError(self._error or f"{self.host} has no address")
        return self._known[0], self.port

    def holds(self, place: Place) -> bool:
        return True

    def risks(self) -> tuple[str, ...]:
        return ()

    def failed(self) -> None:
        """The current address did not work: the next one's turn, and a fresh look at the name."""
        self._known = self._known[1:] + self._known[:1]
        self.refresh()

    def refresh(self) -> None:
        """Starts resolving unless that is under way."""
        if self._resolving is None or self._resolving.done():
            self._resolving = asyncio.get_running_loop().create_task(self._look_up())

    async def _look_up(self) -> None:
        try:
            found = await self._resolve(self.host, self.port)
        except OSError as error:
            self._error = f"{self.host} cannot be resolved: {error.strerror or error}"
            return
        kept = [address for address in self._known if address in found]
        self._known = tuple(dict.fromkeys([*kept, *found])) or self._known

    async def aclose(self) -> None:
        if self._resolving is not None and not self._resolving.done():
            self._resolving.cancel()
            await asyncio.gather(self._resolving, return_exceptions=True)
