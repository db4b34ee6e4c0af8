"""`narwhal demo` as a newcomer runs it: its promises hold, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil
import pytest

from tests.support.processes import Process, eventually, python

BACKGROUND_JOB = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""A shell without job control starts its background jobs with SIGINT ignored."""


@contextmanager
def demo(*options: str, started_by: Sequence[str] = ()) -> Iterator[Process]:
    process = Process([*started_by, *python("narwhal.cli", "demo", *options)])
    try:
        yield process
    finally:
        process.stop()


def test_the_demo_keeps_its_promises_and_ends_by_itself() -> None:
    with demo() as run:
        assert run.ended(within_s=100) == 0, run.output
        for words in ("kill -9", "clean switch", "failed requests", "Every promise held"):
            assert words in run.output


@pytest.mark.parametrize("started_by", [(), BACKGROUND_JOB], ids=["foreground", "background"])
def test_an_interrupt_ends_every_process_of_the_demo(started_by: Sequence[str]) -> None:
    with demo("--keep", started_by=started_by) as run:
        run.wait_for(lambda lines: any("two routers" in line for line in lines))
        children = psutil.Process(run.pid).children(recursive=True)
        assert len(children) >= 4
        run.send(signal.SIGINT)
        assert run.ended() == 130, run.output
        eventually(lambda: not any(child.is_running() for child in children), what="the end of all children")
