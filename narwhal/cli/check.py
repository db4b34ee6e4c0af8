"""`narwhal-check`: is this fleet fit to serve. Exit status 0 no gate failed, 1 one did, 2 wrong usage or
configuration."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from narwhal import __version__
from narwhal.cli.contract_versions import contract_versions
from narwhal.cli.problems import tell_problems
from narwhal.config.example import EXAMPLE
from narwhal.config.load import FleetReading, read_fleet
from narwhal.config.option_table import BY_KEY
from narwhal.config.options import given_options
from narwhal.config.secret import secret
from narwhal.errors import ConfigError
from narwhal.runtime.check import GATES, Extent, Finding, GateReport, Verdict, check_fleet, store_warnings

PROGRAM: Final = "narwhal-check"
SCHEMA: Final = "narwhal.check"
SCHEMA_VERSION: Final = 1
PASSED, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130

_EPILOG: Final = """\
gates, in this order:
  reach     every engine answers /health and /version
  contract  sidecar, engine_contract and live process agree
  profile   rows of the profile store: errors, range, auth mode
  model     every engine serves the fleet's model
  pace      streamed answers come token by token, as fast as the profile says
  tokenize  /tokenize counts as the engine does
  produce   prefill legs answer with a KV handoff
  consume   decode legs over handed KV say what the producer says by itself
  slo       time to first token and between tokens against the targets
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Problems of usage and configuration go to standard error, one line each, without a traceback."""
    try:
        given = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    except SystemExit as ending:
        return int(ending.code or 0)
    try:
        if given.print_example_config or given.print_contract_versions:
            _print(EXAMPLE if given.print_example_config else contract_versions())
            return PASSED
        return _run(given)
    except ConfigError as error:
        tell_problems(PROGRAM, error)
        return WRONG_USE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has gone (`| head`); what was not told cannot pass for good.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _print(document: Mapping[str, Any]) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))


def _run(given: argparse.Namespace) -> int:
    if not given.fleet:
        raise ConfigError("--fleet PATH is required")
    if given.repeats < 1:
        raise ConfigError(f"--repeats must be at least 1, got {given.repeats}")
    reading = read_fleet(given.fleet, os.environ)
    name = reading.config.engine.engine_api_key_env
    key = secret(os.environ, name, named_by="engine.engine_api_key_env") if name else ""
    extent = Extent(kv=not given.no_kv, ring=given.ring, repeats=given.repeats)
    store = _store(given, os.environ)
    reports = check_fleet(reading.config, extent, api_key=key, watcher=Screen(quiet=given.json))
    warnings = store() if store else None
    if given.json:
        _print(document_of(reading, reports, store=warnings))
    else:
        print("\n".join([*store_lines(warnings), summary(reports)]))
    return FAILED if _failed(reports) else PASSED


def _store(given: argparse.Namespace, env: Mapping[str, str]) -> Callable[[], tuple[str, ...]] | None:
    """The look at the store that options or environment name, None without one. Raises ConfigError."""
    words = ["--fleet", given.fleet]
    for name in ("redis_url", "redis_password_env"):
        if value := getattr(given, name):
            words += [f"--{name.replace('_', '-')}", value]
    # Of the environment of a router only what concerns the store: the rest is not asked about here.
    twins = [BY_KEY[key].twin for key in ("redis_url", "redis_password_env", "redis_min_replicas")]
    options = given_options(words, {twin: env[twin] for twin in twins if twin in env})
    if options.store is None:
        return None
    name = options.value("redis_password_env")
    password = secret(env, name, named_by="--redis-password-env") if name else options.store_password
    min_replicas = options.value("redis_min_replicas")
    return partial(store_warnings, options.store, password, min_replicas=min_replicas)


def _failed(reports: Sequence[GateReport]) -> list[str]:
    return [report.name for report in reports if report.verdict is Verdict.FAILED]


def document_of(
    reading: FleetReading, reports: Sequence[GateReport], *, store: Sequence[str] | None
) -> dict[str, Any]:
    """`narwhal.check` v1. `store`: warnings about it, None where none was named."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "fleet": reading.path,
        "config_digest": reading.config.digest,
        "passed": not _failed(reports),
        "gates": [report.document() for report in reports],
        "store": None if store is None else {"warnings": list(store)},
    }


def store_lines(warnings: Sequence[str] | None) -> list[str]:
    """The store is no gate: what is said of it fails nothing. None: no store was named."""
    if warnings is None:
        return []
    return [f"{'store':<9} looked at", *(f"    warning: {sentence}" for sentence in warnings)]


def summary(reports: Sequence[GateReport]) -> str:
    if failed := _failed(reports):
        return f"not fit to serve: {', '.join(failed)} failed"
    skipped = [report.name for report in reports if report.verdict is Verdict.SKIPPED]
    return f"no gate failed of {len(GATES)}" + (f", {', '.join(skipped)} skipped" if skipped else "")


class Screen:
    """`Watcher` at a terminal: reports on standard output (`quiet`: none), on standard error what goes on."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._doing = ""
        self._live = sys.stderr.isatty()

    def begin(self, gate: str) -> None:
        self._status(f"{gate} ...")

    def progress(self, done: int, total: int) -> None:
        self._status(f"{self._doing.split()[0]} {done}/{total}")

    def waiting(self, seconds: float) -> None:
        """Where nobody watches, a line of its own: whoever reads it later, or waits, sees that it goes on."""
        if self._live:
            self._write(f"{self._doing} ({seconds:.0f} s)")
        elif self._doing:
            print(f"{PROGRAM}: {self._doing} ({seconds:.0f} s)", file=sys.stderr, flush=True)

    def tell(self, report: GateReport) -> None:
        self._status("")
        if self._quiet:
            print(f"{report.name:<9} {report.verdict}", file=sys.stderr, flush=True)
        else:
            print("\n".join(lines_of(report)), flush=True)

    def _status(self, doing: str) -> None:
        self._doing = doing
        if self._live:
            self._write(doing)

    def _write(self, text: str) -> None:
        """One line that is written over."""
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def lines_of(report: GateReport) -> list[str]:
    return [f"{report.name:<9} {report.verdict}", *(_line(finding) for finding in report.findings)]


def _line(finding: Finding) -> str:
    mark = {Verdict.PASSED: " ", Verdict.FAILED: "!", Verdict.SKIPPED: "-"}[finding.verdict]
    warning = f"warning: {finding.warning}" if finding.warning else ""
    return f"  {mark} {finding.subject}: " + "; ".join(text for text in (finding.detail, warning) if text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        allow_abbrev=False,
        description="Tries a fleet of engines from outside, gate by gate, with a few small requests.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--fleet", default="", metavar="PATH", help="the fleet file")
    add(
        "--no-kv",
        action="store_true",
        help="leave out KV handoffs; slo then judges each engine alone",
    )
    add("--ring", action="store_true", help="hand KV from every engine to the next one, whatever the roles")
    add("--repeats", type=int, default=3, metavar="N", help="requests of each measurement (3)")
    add("--redis-url", metavar="URL", help="warn of the routers' store too [NARWHAL_REDIS_URL]")
    add("--redis-password-env", metavar="NAME", help=BY_KEY["redis_password_env"].doc)
    add("--json", action="store_true", help="the result as a document")
    add("--print-example-config", action="store_true", help="print a fleet file to begin with, and end")
    add("--print-contract-versions", action="store_true",
        help="print the engine builds and document versions that this version knows, and end")  # fmt: skip
    add("--version", action="version", version=f"{PROGRAM} {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
