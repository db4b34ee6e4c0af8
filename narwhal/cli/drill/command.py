"""Command line of `narwhal cluster drill`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from narwhal.cli.demo.extras import INSTALL, ExtraMissing, redis_server
from narwhal.cli.demo.machines import StartFailed
from narwhal.cli.drill.folder import kept_on_failure
from narwhal.cli.drill.report import listing, report_document, row_document, table
from narwhal.cli.drill.rows import ROWS, Row
from narwhal.cli.drill.run import Ears, Outcome, Plan, run_rows
from narwhal.cli.drill.stage import NAMES, Setting
from narwhal.cli.drill.traffic import Load
from narwhal.cli.terminal import plain_console
from narwhal.config.option_table import BY_KEY

PROGRAM: Final = "narwhal cluster drill"
INTERRUPTED: Final = 130
WIDTH: Final = 150
HELD: Final = "Every promise held: no two owners at any instant, epochs only grew, every count is right."
_EPILOG: Final = """\
Every process is started by the drill, on free ports of the loopback address, and ended by it. Exit status: 0
every promise held, 1 one did not (or a part did not start), 2 wrong usage.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    try:
        options = parser.parse_args(list(sys.argv[1:] if argv is None else argv))
    except SystemExit as ending:
        return int(ending.code or 0)
    console = plain_console(width=WIDTH)
    if options.list:
        console.print(listing())
        return 0
    try:
        rows, plan = _rows(options, console), _plan(options)
    except (_WrongUse, ExtraMissing) as error:
        hint = f" is missing: {INSTALL}" if isinstance(error, ExtraMissing) else ""
        print(f"{PROGRAM}: {error}{hint}", file=sys.stderr)
        return 2
    try:
        return asyncio.run(_run(rows, plan, options=options, console=console))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print(f"{PROGRAM}: interrupted, everything is ended", file=sys.stderr)
        return INTERRUPTED
    except StartFailed as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1


class _WrongUse(Exception):
    """What is wrong with the options."""


async def _run(rows: Mapping[str, Row], plan: Plan, *, options: argparse.Namespace, console: Console) -> int:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    documents: list[dict[str, Any]] = []

    def take(outcome: Outcome) -> None:
        documents.append(row_document(outcome, plan))
        for sentence in documents[-1]["broken"]:
            console.print(f"  BROKEN: {sentence}")
        _write(options.json, report_document(documents, plan))

    with kept_on_failure(options.folder, console.print) as folder:
        await run_rows(rows, plan, folder=folder.path, ears=Ears(console.print, take))
        console.print(table(documents))
        folder.held = all(document["held"] for document in documents)
    if folder.held:
        console.print(HELD)
    if missed := [document["name"] for document in documents if document["goal_met"] is False]:
        console.print(f"Slower than the goal here: {', '.join(missed)}.")
    return 0 if folder.held else 1


def _write(path: str | None, document: dict[str, Any]) -> None:
    """After every row: an interrupted drill leaves what it saw."""
    if path:
        Path(path).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _rows(options: argparse.Namespace, console: Console) -> dict[str, Row]:
    """The rows that were named, else all that can run here; those left out are said."""
    named = [name for text in options.only or () for name in text.split(",")]
    if unknown := [name for name in named if name not in ROWS]:
        raise _WrongUse(f"--only {unknown[0]}: not a drill; --list shows them")
    chosen: dict[str, Row] = {}
    for name in named or ROWS:
        reason = _obstacle(ROWS[name], options)
        if not reason:
            chosen[name] = ROWS[name]
        elif named:
            raise _WrongUse(f"--only {name}: {reason}")
        else:
            console.print(f"{name}: left out, {reason}")
    return chosen


def _obstacle(row: Row, options: argparse.Namespace) -> str:
    if row.needs.own_store and options.redis_url:
        return "it harms the store: only without --redis-url"
    if row.needs.doors and options.redis_url:
        return "it stands between the routers and a store of its own: only without --redis-url"
    if row.needs.warden and "no_warden" not in BY_KEY:
        return "this version has no warden"
    if row.needs.failsafe and "failsafe" not in BY_KEY:
        return "this version has no fail-safe mode"
    if row.needs.failsafe and options.routers < 2:
        return "fail-safe needs two routers"
    return ""


def _plan(options: argparse.Namespace) -> Plan:
    if options.folder and os.path.isdir(options.folder) and os.listdir(options.folder):
        raise _WrongUse(f"--folder {options.folder}: must be empty or new")
    haproxy = None
    if options.haproxy:
        program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
        if program is None:
            raise _WrongUse("--haproxy: haproxy is not installed")
        if not os.path.isfile(options.haproxy):
            raise _WrongUse(f"--haproxy {options.haproxy}: no such file")
        if options.routers != 2:
            raise _WrongUse("--haproxy: the configuration names two routers")
        haproxy = (program, Path(options.haproxy).read_text(encoding="utf-8"))
    setting = Setting(
        server="" if options.redis_url else redis_server(),
        redis_url=options.redis_url or "",
        routers=options.routers,
        haproxy=haproxy,
        interval_s=options.stream / options.tokens,
    )
    load = Load(options.rate, options.tokens, options.stream)
    return Plan(setting, load, runs=options.runs, slack_s=options.slack)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        allow_abbrev=False,
        description="Breaks a router cluster of its own, with simulated engines, and judges it from outside.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--list", action="store_true", help="show the drills")
    add("--only", action="append", metavar="NAME", help="this drill (again for more, or split by commas)")
    add("--runs", type=_count(1, 1000), default=1, metavar="N", help="how often each fault is made (1)")
    add("--json", metavar="FILE", help="write the report there")
    add("--rate", type=_number(0.1, 5000), default=40.0, metavar="N", help="requests a second (40)")
    add("--stream", type=_number(0.01, 60), default=1.0, metavar="S", help="seconds that a stream takes (1)")
    add("--tokens", type=_count(3, 10_000), default=20, metavar="N", help="tokens of a stream (20)")
    add("--routers", type=_count(2, len(NAMES)), default=2, metavar="N", help="routers (2)")
    add("--slack", type=_number(0, 600), default=1.0, metavar="S",
        help="how far a takeover may be over its goal on a busy machine (1)")  # fmt: skip
    add(
        "--haproxy",
        metavar="FILE",
        help="put haproxy in front, with a configuration like configs/haproxy.cfg",
    )
    add("--redis-url", metavar="URL", help="use this store, under a cluster name of the drill's own")
    add(
        "--folder",
        metavar="DIR",
        help="keep logs and files of all processes there (else they are kept only when something fails)",
    )
    return parser


def _count(least: int, most: int) -> Any:
    def read(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {least} to {most}")
        return value

    return read


def _number(least: float, most: float) -> Any:
    def read(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {least:g} to {most:g}")
        return value

    return read
