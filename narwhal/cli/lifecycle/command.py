"""`narwhal drain|readmit|lifecycle`. Exit status 0 done, 1 it did not come about, 2 wrong usage."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from narwhal.cli.asking import DEFAULT_ROUTER, CommandFailed, Document, Order, control_key, named_router
from narwhal.cli.lifecycle.options import drain_parser, lifecycle_parser, readmit_parser
from narwhal.cli.lifecycle.progress import Tell, progress_line, telling
from narwhal.cli.lifecycle.routers import Routers
from narwhal.cli.lifecycle.tables import lifecycle_view
from narwhal.cli.lifecycle.verdict import Targets, Verdict
from narwhal.cli.lifecycle.waiting import (
    CHECKS_S,
    DRAIN,
    READMIT,
    Asking,
    Refused,
    answered,
    until_drained,
    until_readmitted,
)
from narwhal.cli.terminal import plain_console
from narwhal.cli.watching import Watched, watch
from narwhal.errors import ConfigError

DONE: Final = 0
FAILED: Final = 1
WRONG_USE: Final = 2
INTERRUPTED: Final = 130

Run = Callable[[argparse.Namespace, Routers], Coroutine[Any, Any, int]]
Told = tuple[Verdict, Document]


def drain(argv: Sequence[str] | None = None) -> int:
    return _main(drain_parser(), argv, run=_drain)


def readmit(argv: Sequence[str] | None = None) -> int:
    return _main(readmit_parser(), argv, run=_readmit)


def lifecycle(argv: Sequence[str] | None = None) -> int:
    return _main(lifecycle_parser(), argv, run=_lifecycle)


def _main(parser: argparse.ArgumentParser, argv: Sequence[str] | None, *, run: Run) -> int:
    """Problems go to standard error, one line each, without a traceback."""
    try:
        options = parser.parse_args(sys.argv[1:] if argv is None else argv)
    except SystemExit as ending:
        return int(ending.code or 0)
    options.program = parser.prog
    try:
        return asyncio.run(run(options, _routers(options, os.environ)))
    except ConfigError as error:
        return _failed(parser.prog, *error.problems, status=WRONG_USE)
    except Refused as error:
        if options.json and error.document is not None:
            print(json.dumps(error.document, indent=2, ensure_ascii=False), flush=True)
        return _failed(parser.prog, str(error), status=FAILED)
    except CommandFailed as error:
        return _failed(parser.prog, f"{error}{_hint(options, os.environ)}", status=FAILED)
    except KeyboardInterrupt:
        if run is not _lifecycle:
            _failed(parser.prog, "interrupted: what was ordered goes on", status=INTERRUPTED)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read has gone (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def _failed(program: str, *sentences: str, status: int) -> int:
    for sentence in sentences:
        print(f"{program}: {sentence}", file=sys.stderr)
    return status


def _hint(options: argparse.Namespace, env: Mapping[str, str]) -> str:
    """For whoever named no router."""
    return "" if named_router(options.router, env) else " (--router or NARWHAL_ROUTER names another router)"


def _routers(options: argparse.Namespace, env: Mapping[str, str]) -> Routers:
    router = named_router(options.router, env) or DEFAULT_ROUTER
    return Routers(router, key=control_key(options.control_key_env, env))


# --- orders ------------------------------------------------------------------------------------------


def _asking(options: argparse.Namespace, routers: Routers, *, order: Order, tell: Tell) -> Asking:
    return Asking(routers, Targets(tuple(options.engines), options.wave), order, tell)


def _named(options: argparse.Namespace) -> dict[str, Any]:
    """Raises ConfigError unless engines or the wave is named, one of them."""
    if bool(options.engines) == options.wave:
        raise ConfigError("name the engines, or the whole fleet with --wave: one of the two")
    return {"wave": True} if options.wave else {"engines": list(options.engines)}


async def _drain(options: argparse.Namespace, routers: Routers) -> int:
    body = _named(options)
    if options.deadline is not None:
        body["deadline_s"] = options.deadline
    with telling(options.program) as tell:
        asking = _asking(options, routers, order=Order(DRAIN, body), tell=tell)
        told = await (until_drained(asking) if options.wait else _drained(asking))
    return _tell(options, told, not_durable=asking.not_durable)


async def _drained(asking: Asking) -> Told:
    document = await asking.once()
    return Verdict(True, f"out of placement: {progress_line(asking.targets, document)}"), document


async def _readmit(options: argparse.Namespace, routers: Routers) -> int:
    order = Order(READMIT, _named(options), timeout_s=CHECKS_S)
    with telling(options.program) as tell:
        asking = _asking(options, routers, order=order, tell=tell)
        if options.wait:
            told = await until_readmitted(asking, within_s=options.within)
        else:
            told = answered(asking.targets, await asking.once())
    return _tell(options, told, not_durable=asking.not_durable)


def _tell(options: argparse.Namespace, told: Told, *, not_durable: str) -> int:
    """The verdict; what could be lost with its router is said as well."""
    verdict, document = told
    if options.json:
        print(json.dumps(document, indent=2, ensure_ascii=False), flush=True)
    elif verdict.done:
        print(verdict.sentence, flush=True)
    if not_durable:
        print(f"{options.program}: warning: it could be lost with its router: {not_durable}", file=sys.stderr)
    return DONE if verdict.done else _failed(options.program, verdict.sentence, status=FAILED)


# --- looking -----------------------------------------------------------------------------------------


async def _lifecycle(options: argparse.Namespace, routers: Routers) -> int:
    if options.watch:
        says = f"{options.program}: {{at}}: {{error}}"
        watched = Watched(routers.document, lifecycle_view, silent=(CommandFailed,), says=says)
        with contextlib.suppress(asyncio.CancelledError):
            await watch(watched, every_s=options.every, as_json=options.json)
        return DONE
    document = await routers.document()
    if options.json:
        print(json.dumps(document, indent=2, ensure_ascii=False), flush=True)
    else:
        plain_console().print(lifecycle_view(document))
    return DONE
