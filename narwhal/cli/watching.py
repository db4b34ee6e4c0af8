"""Commands that look again until Ctrl-C: a live table for people, one document a line for programs."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from narwhal.cli.asking import Document
from narwhal.cli.terminal import plain_console


@dataclass(frozen=True, slots=True)
class Watched:
    """`silent`: what `look` raises where nobody answers, which is said, and asked again. `says` are the words
    in which programs are told of it on standard error: `{at}` the time, `{error}` what was raised."""

    look: Callable[[], Awaitable[Document]]
    view: Callable[[Document], RenderableType]
    silent: tuple[type[Exception], ...]
    says: str


async def watch(watched: Watched, *, every_s: float, as_json: bool) -> None:
    """Ends by cancellation only, also of Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None
    # By hand: a shell starts background jobs with SIGINT ignored, and asyncio.run leaves it at that.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    if as_json:
        while True:
            await _tell_one(watched)
            await asyncio.sleep(every_s)
    with Live(console=plain_console(), auto_refresh=False, screen=sys.stdout.isatty()) as live:
        while True:
            live.update(await _frame(watched), refresh=True)
            await asyncio.sleep(every_s)


async def _tell_one(watched: Watched) -> None:
    """Silence goes to standard error, so that what reads the documents goes on."""
    try:
        print(json.dumps(await watched.look()), flush=True)
    except watched.silent as error:
        print(watched.says.format(at=_now(), error=error), file=sys.stderr, flush=True)


async def _frame(watched: Watched) -> RenderableType:
    at = _now()
    try:
        seen = watched.view(await watched.look())
    except watched.silent as error:
        seen = Text(f"no answer: {error}")
    return Group(Text(f"{at}   Ctrl-C ends"), Text(), seen)


def _now() -> str:
    return datetime.now(UTC).strftime("%H:%M:%S UTC")
