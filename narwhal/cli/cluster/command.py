"""`narwhal cluster`. Exit status 0 done, 1 it could not be done, 2 wrong usage or configuration."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from narwhal.cli.asking import CommandFailed, router_document
from narwhal.cli.cluster import orders
from narwhal.cli.cluster.changes import merged, remembered
from narwhal.cli.cluster.document import change_of, cluster_document
from narwhal.cli.cluster.options import parser
from narwhal.cli.cluster.tables import history_view, status_view
from narwhal.cli.cluster.target import Target, read_records, reader_of, target_of
from narwhal.cli.cluster.timings import timings_document, timings_view
from narwhal.cli.terminal import plain_console
from narwhal.config.options import given_options
from narwhal.errors import ConfigError, StoreProtocolError, StoreUnreachable

DONE: Final = 0
FAILED: Final = 1
WRONG_USE: Final = 2
INTERRUPTED: Final = 130

Document = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Problems go to standard error, one line each, without a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["drill"]:
        return importlib.import_module("narwhal.cli.drill").main(words[1:])  # type: ignore[no-any-return]
    try:
        options = parser().parse_args(words)
    except SystemExit as ending:
        return int(ending.code or 0)
    try:
        _COMMANDS[options.command](options, os.environ)
    except ConfigError as error:
        return _failed(options, *error.problems, status=WRONG_USE)
    except StoreProtocolError as error:
        return _failed(options, str(error), status=WRONG_USE)
    except StoreUnreachable as error:
        return _failed(options, f"the store gives no answer: {error}", status=FAILED)
    except CommandFailed as error:
        return _failed(options, str(error), status=FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return DONE


def _failed(options: argparse.Namespace, *sentences: str, status: int) -> int:
    for sentence in sentences:
        print(f"narwhal cluster {options.command}: {sentence}", file=sys.stderr)
    return status


def _tell(options: argparse.Namespace, document: object, *, view: Callable[[], RenderableType]) -> None:
    if options.json:
        print(json.dumps(document, indent=2, ensure_ascii=False), flush=True)
    else:
        plain_console().print(view())


# --- looking -----------------------------------------------------------------------------------------


async def _look(target: Target) -> Document:
    if not target.reads_store:
        return await router_document(target.router, "/narwhal/cluster")
    async with reader_of(target) as reader:
        return cluster_document(await read_records(target, reader))


def _status(options: argparse.Namespace, env: Mapping[str, str]) -> None:
    document = asyncio.run(_look(target_of(options, env)))
    _tell(options, document, view=lambda: status_view(document))


async def _changes(target: Target) -> tuple[list[Document], list[str]]:
    """Changes, oldest first; sentences about routers that did not answer."""
    if not target.reads_store:
        document = await router_document(target.router, "/narwhal/cluster")
        return merged([], {target.router: document.get("ownership_changes", ())}), []
    async with reader_of(target) as reader:
        records = await read_records(target, reader)
    told, silent = await remembered([one.control_url or one.url for one in records.routers])
    return merged(map(change_of, records.changes), told), silent


def _history(options: argparse.Namespace, env: Mapping[str, str]) -> None:
    changes, silent = asyncio.run(_changes(target_of(options, env)))
    changes = changes[-options.last :]
    for sentence in silent:
        print(f"narwhal cluster history: {sentence}", file=sys.stderr)
    _tell(options, changes, view=lambda: history_view(changes))


def _watch(options: argparse.Namespace, env: Mapping[str, str]) -> None:
    target = target_of(options, env)
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_watch_for_ever(options, target))


async def _watch_for_ever(options: argparse.Namespace, target: Target) -> None:
    """Until Ctrl-C; a store or router that is away is said, and asked again."""
    task = asyncio.current_task()
    assert task is not None
    # By hand: a shell starts background jobs with SIGINT ignored, and asyncio.run leaves it at that.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    if options.json:
        while True:
            await _tell_one(target)
            await asyncio.sleep(options.every)
    with Live(console=plain_console(), auto_refresh=False, screen=sys.stdout.isatty()) as live:
        while True:
            live.update(await _frame(_look(target)), refresh=True)
            await asyncio.sleep(options.every)


async def _tell_one(target: Target) -> None:
    """One document a line; silence goes to standard error, so that what reads the documents goes on."""
    try:
        print(json.dumps(await _look(target)), flush=True)
    except (StoreUnreachable, CommandFailed) as error:
        at = datetime.now(UTC).strftime("%H:%M:%S UTC")
        print(f"narwhal cluster watch: {at}: no answer: {error}", file=sys.stderr, flush=True)


async def _frame(look: Awaitable[Document]) -> RenderableType:
    at = datetime.now(UTC).strftime("%H:%M:%S UTC")
    try:
        seen = status_view(await look)
    except (StoreUnreachable, CommandFailed) as error:
        seen = Text(f"no answer: {error}")
    return Group(Text(f"{at}   Ctrl-C ends"), Text(), seen)


# --- orders ------------------------------------------------------------------------------------------


def _yield(options: argparse.Namespace, env: Mapping[str, str]) -> None:
    url, document = asyncio.run(orders.hand_over(target_of(options, env), options.to))
    _tell(options, document, view=lambda: Text(f"{url} has handed over" + _next_words(document)))


def _next_words(document: Document) -> str:
    lease = document.get("lease", {})
    return f"; {lease['router_id']} owns epoch {lease['epoch']}" if lease.get("state") == "held" else ""


def _depose(options: argparse.Namespace, env: Mapping[str, str]) -> None:
    target = target_of(options, env)
    if target.given.store is None:
        raise ConfigError("depose works on the store: pass --redis-url (or set NARWHAL_REDIS_URL)")
    holder = asyncio.run(
        orders.depose(target, options.reason, expected=options.expected or "", confirm=orders.asked)
    )
    words = f"{holder} is deposed; a standby may own when it has watched the released record for T"
    _tell(options, {"deposed": holder, "reason": options.reason}, view=lambda: Text(words))


# --- arithmetic --------------------------------------------------------------------------------------

_TIMES: Final = ("lease_ttl", "lease_renew_interval", "lease_safety_margin", "standby_probe_interval")


def _timings(options: argparse.Namespace, env: Mapping[str, str]) -> None:
    words = ["--fleet", "-", "--redis-url", "redis://localhost"]
    for name in _TIMES:
        if value := getattr(options, name):
            words += [f"--{name.replace('_', '-')}", value]
    document = timings_document(given_options(words, env).timings)
    _tell(options, document, view=lambda: timings_view(document))


_COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace, Mapping[str, str]], None]]] = {
    "status": _status,
    "history": _history,
    "watch": _watch,
    "yield": _yield,
    "depose": _depose,
    "timings": _timings,
}
