"""`narwhal cluster`. Exit status 0 done, 1 it could not be done, 2 wrong usage or configuration."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType
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
from narwhal.cli.told import CLUSTER
from narwhal.cli.watching import Watched, watch
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
        return await router_document(target.router, CLUSTER)
    async with reader_of(target) as reader:
        return cluster_document(await read_records(target, reader))


def _status(options: argparse.Namespace, env: Mapping[str, str]) -> None:
    document = asyncio.run(_look(target_of(options, env)))
    _tell(options, document, view=lambda: status_view(document))


async def _changes(target: Target) -> tuple[list[Document], list[str]]:
    """Changes, oldest first; sentences about routers that did not answer."""
    if not target.reads_store:
        document = await router_document(target.router, CLUSTER)
        return merged([], {target.router: document["ownership_changes"]}), []
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
    watched = Watched(
        lambda: _look(target),
        status_view,
        silent=(StoreUnreachable, CommandFailed),
        says="narwhal cluster watch: {at}: no answer: {error}",
    )
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(watch(watched, every_s=options.every, as_json=options.json))


# --- orders ------------------------------------------------------------------------------------------


def _yield(options: argparse.Namespace, env: Mapping[str, str]) -> None:
    url, document = asyncio.run(orders.hand_over(target_of(options, env), options.to))
    _tell(options, document, view=lambda: Text(f"{url} has handed over" + _next_words(document)))


def _next_words(document: Document) -> str:
    lease = document["lease"]
    return f"; {lease['router_id']} owns epoch {lease['epoch']}" if lease["state"] == "held" else ""


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
