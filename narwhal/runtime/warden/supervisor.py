"""Whom a router process tells how it stands: the warden that started it, else its service manager."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from narwhal.policy.totals import Totals
from narwhal.telemetry import sd_notify


class Supervisor(Protocol):
    """All calls are quick and none fails."""

    @property
    def orders(self) -> Sequence[signal.Signals]:
        """The signals that mean the end of this process."""

    def name(self, router_id: str, run: str) -> None:
        """Who this process is, before it meets the store."""

    def tell(self, token: str, floor: int) -> None:
        """An acquire with this token is about to be sent; any thread."""

    def follow(self, totals: Totals) -> None:
        """From now on every change of the own counters is told before anything else happens."""

    def watch(self, loop: asyncio.AbstractEventLoop, *, ended: Callable[[], None]) -> None:
        """The loop runs: heartbeats begin. `ended`: called when the supervisor is gone."""

    def ready(self) -> None: ...

    def stopping(self) -> None: ...

    def rest(self) -> None:
        """The loop is over."""


class ServiceManager:
    """Nobody above but a service manager, if `NOTIFY_SOCKET` says so."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.orders = (signal.SIGTERM, signal.SIGINT)

    def name(self, router_id: str, run: str) -> None:
        """A service manager knows."""

    def tell(self, token: str, floor: int) -> None:
        """Nobody could release it."""

    def follow(self, totals: Totals) -> None:
        """Nobody could flush them."""

    def watch(self, loop: asyncio.AbstractEventLoop, *, ended: Callable[[], None]) -> None:
        """Nobody looks for a heartbeat."""

    def ready(self) -> None:
        sd_notify.notify(sd_notify.READY, self._env)

    def stopping(self) -> None:
        sd_notify.notify(sd_notify.STOPPING, self._env)

    def rest(self) -> None:
        """Nothing has been promised."""
