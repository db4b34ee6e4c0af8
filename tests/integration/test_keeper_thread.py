"""The keeper's thread as the main loop meets it: its end, its error, a waiter that goes."""

from __future__ import annotations

import asyncio
import threading

import pytest

from narwhal.errors import StoreProtocolError
from narwhal.runtime.keeper_thread import KeeperThread


class Work:
    """Runs until `release`, then raises `error` if there is one. `closed` once it was closed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.release = threading.Event()
        self.closed = threading.Event()
        self._error = error

    async def run(self) -> None:
        await asyncio.to_thread(self.release.wait, 30)
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        self.closed.set()


async def test_the_end_reaches_the_main_loop_after_the_close():
    work = Work()
    keeper = KeeperThread(work.run, close=work.close)
    keeper.start()
    work.release.set()
    assert await asyncio.wrap_future(keeper.ended) is None
    assert work.closed.is_set() and keeper.join()


async def test_an_error_reaches_the_main_loop():
    work = Work(StoreProtocolError("hidden INFO"))
    keeper = KeeperThread(work.run, close=work.close)
    keeper.start()
    work.release.set()
    with pytest.raises(StoreProtocolError, match="hidden INFO"):
        await asyncio.wrap_future(keeper.ended)
    assert work.closed.is_set() and keeper.join()


async def test_a_waiter_that_goes_does_not_break_the_end(monkeypatch):
    """A refused start stops waiting first; the thread then ended in a traceback."""
    raised = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    work = Work()
    keeper = KeeperThread(work.run, close=work.close)
    keeper.start()
    waiter = asyncio.ensure_future(asyncio.wrap_future(keeper.ended))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait({waiter})
    work.release.set()
    assert await asyncio.to_thread(keeper.join)
    assert raised == []
