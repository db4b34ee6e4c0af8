"""`narwhal demo` as a newcomer runs it: its promises hold, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from tests.support.processes import Process, eventually, python


@contextmanager
def demo(*options: str) -> Iterator[Process]:
    process = Process(python("narwhal.cli", "demo", *options))
    try:
        yield process
    finally:
        process.stop()


def test_the_demo_keeps_its_promises_and_ends_by_itself() -> None:
    with demo() as run:
        assert run.ended(within_s=100) == 0, run.output
        for words in ("kill -9", "clean switch", "failed requests", "Every promise held"):
            assert words in run.output


def test_an_interrupt_ends_every_process_of_the_demo() -> None:
    with demo("--keep") as run:
        run.wait_for(lambda lines: any("two routers" in line for line in lines))
        children = psutil.Process(run.pid).children(recursive=True)
        assert len(children) >= 4
        run.send(signal.SIGINT)
        assert run.ended() == 130, run.output
        eventually(lambda: not any(child.is_running() for child in children), what="the end of all children")
