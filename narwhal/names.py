"""Addresses of host names: a lookup that hangs holds up those who ask for that name, and nobody else.

getaddrinfo blocks its thread for as long as the resolver likes, 10 s where no name server answers, and loops
give it to a pool that all names share (uvloop has four threads, of which lookups get two): a few questions
for one name keep all others waiting. Here each question has a thread of its own, and `Names` asks one
question for a name at a time.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from threading import Thread
from typing import TypeVar

Reached = TypeVar("Reached")
Found = tuple[str, ...]
Answer = asyncio.Future[Found | OSError]
"""Failures are results too: nobody may be left to hear of one."""
LookUp = Callable[[str], Found]

KEPT_S = 5.0
"""How long an answer is good for more connections, so that reconnecting does not wait for the resolver."""


def system_look_up(host: str) -> Found:
    """In the system's order, without repeats. Blocks. Raises OSError."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except ValueError as error:  # such as a label that is too long for a name
        raise OSError(str(error)) from error
    return tuple(dict.fromkeys(str(item[4][0]) for item in found))


async def addresses_of(host: str) -> Found:
    """Asks anew each time. Raises OSError."""
    return (host,) if _is_address(host) else _good(await _asked(host, system_look_up))


class Names:
    """Used on one loop."""

    def __init__(self, look_up: LookUp = system_look_up, *, kept_s: float = KEPT_S) -> None:
        self._look_up = look_up
        self._kept_s = kept_s
        self._answers: dict[str, Answer] = {}
        """Those awaited and those that are still good."""

    async def reach(self, host: str, connect: Callable[[str], Awaitable[Reached]]) -> Reached:
        """What `connect` makes of the first address that it does not raise OSError for.

        Raises OSError: the lookup's, or what came of the addresses.
        """
        if _is_address(host):
            return await connect(host)
        answer = self._answer(host)
        errors: list[OSError] = []
        # Shielded, since others wait for it too.
        for address in _good(await asyncio.shield(answer)):
            try:
                return await connect(address)
            except OSError as error:
                errors.append(error)
        # Whoever has the name may have moved.
        self._forget(host, answer)
        told = dict.fromkeys(map(str, errors))
        raise errors[0] if len(told) == 1 else OSError(", ".join(told))

    def _answer(self, host: str) -> Answer:
        answer = self._answers.get(host)
        if answer is None:
            answer = self._answers[host] = _asked(host, self._look_up)
            answer.add_done_callback(partial(self._keep, host))
        return answer

    def _keep(self, host: str, answer: Answer) -> None:
        if isinstance(answer.result(), OSError):
            self._forget(host, answer)
        else:
            answer.get_loop().call_later(self._kept_s, self._forget, host, answer)

    def _forget(self, host: str, answer: Answer) -> None:
        if self._answers.get(host) is answer:
            del self._answers[host]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _good(answer: Found | OSError) -> Found:
    if isinstance(answer, OSError):
        # One of its own for each who waited: an exception collects where it was raised.
        raise OSError(*answer.args) from answer
    return answer


def _asked(host: str, look_up: LookUp) -> Answer:
    loop = asyncio.get_running_loop()
    answer: Answer = loop.create_future()

    def tell(found: Found | OSError) -> None:
        if not answer.done():
            answer.set_result(found)

    def ask() -> None:
        found: Found | OSError = OSError("the lookup broke off")
        try:
            found = look_up(host)
        except OSError as error:
            found = error
        finally:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(tell, found)

    # A daemon, and of no executor: neither the loop's end nor the process's waits for it.
    Thread(target=ask, name="look-up", daemon=True).start()
    return answer
