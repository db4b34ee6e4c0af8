"""Command line of `narwhal demo`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from narwhal.cli.demo.extras import INSTALL, ExtraMissing, installed
from narwhal.cli.demo.machines import Site, StartFailed
from narwhal.cli.demo.report import broken_promises, table
from narwhal.cli.demo.story import Story
from narwhal.cli.terminal import plain_console

LIMIT_S: Final = 90.0
INTERRUPTED: Final = 130
WIDTH: Final = 100
HELD: Final = """\
Every promise held: one owner at a time, epochs only grew, no request failed, nothing was counted twice.
The warden of a killed router gives the lease back and flushes its counters; only a lost host has to be
noticed by its silence, which takes 4 to 5.3 s."""


def main(argv: Sequence[str] | None = None, *, extras: Callable[[], str] = installed) -> int:
    """0: every promise held. 1: one did not, or a part did not start. 2: an extra is missing. 130: Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="narwhal demo",
        description="Two routers, four simulated engines, a Redis server and openai clients on this machine: "
        "the owner is killed with -9, later switched cleanly, and requests go on.",
    )
    parser.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C")
    options = parser.parse_args(argv)
    try:
        server = extras()
    except ExtraMissing as error:
        print(f"narwhal demo: {error} is missing: {INSTALL}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="narwhal-demo-", ignore_cleanup_errors=True) as folder:
        site = Site(Path(folder))
        try:
            return asyncio.run(_run(site, server, keep=options.keep))
        except (KeyboardInterrupt, asyncio.CancelledError):
            print("narwhal demo: interrupted, everything is ended", file=sys.stderr)
            return INTERRUPTED
        except StartFailed as error:
            print(f"narwhal demo: {error}", file=sys.stderr)
            return 1
        finally:
            site.close()


async def _run(site: Site, server: str, *, keep: bool) -> int:
    task = asyncio.current_task()
    assert task is not None
    # SIGINT too: a shell starts background jobs with it ignored, and asyncio.run leaves it at that.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    console, began = plain_console(soft_wrap=True, width=WIDTH), time.monotonic()
    story = Story(site, server, lambda line: console.print(f"{time.monotonic() - began:5.1f} s  {line}"))
    try:
        async with asyncio.timeout(LIMIT_S):
            await story.set_up()
            outcome = await story.run()
    except TimeoutError:
        print(f"narwhal demo: it did not come to its end in time\n{_tails(site)}", file=sys.stderr)
        return 1
    broken = list(broken_promises(outcome))
    console.print(table(outcome))
    for sentence in broken:
        console.print(f"BROKEN: {sentence}")
    if not broken:
        console.print(HELD)
    if keep:
        await _keep(story, console)
    return 1 if broken else 0


async def _keep(story: Story, console: Console) -> None:
    """Brings the pair back to two, tells where everything is, and waits for Ctrl-C."""
    for router in story.routers:
        if router.machine is None or not router.machine.running:
            await router.start()
    console.print("\nStill running, until Ctrl-C:")
    for router in story.routers:
        console.print(f"  curl -s {router.url}/ready; curl -s {router.url}/narwhal/state")
    console.print(f"  engines: {' '.join(f'{url}/sim/stats' for url in story.engines)}")
    for line in store_lines(story.redis_port):
        console.print(f"  {line}")
    console.print(f"  logs: {story.site.folder}")
    await asyncio.Event().wait()


def store_lines(port: int) -> list[str]:
    """Commands that show what the cluster keeps in the store."""
    cli = f"redis-cli -p {port}"
    return [f"{cli} --scan", f"{cli} hgetall 'narwhal:{{simulated}}:lease'"]


def _tails(site: Site) -> str:
    return "\n".join(f"--- {machine.name}\n{machine.tail()}" for machine in site.machines)
