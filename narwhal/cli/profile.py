"""`narwhal-profile`: measures engines and fits their profiles. Exit status 0 every chosen engine has a row,
1 one could not be measured, 2 wrong usage or configuration, 130 stopped (samples are kept)."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.table import Table

from narwhal import __version__
from narwhal.cli.problems import tell_problems
from narwhal.cli.terminal import plain_console
from narwhal.config.load import read_fleet
from narwhal.config.secret import secret
from narwhal.errors import ConfigError
from narwhal.model.engine import EngineProfile
from narwhal.model.settings import FleetConfig
from narwhal.runtime.profile import ProfileOptions, ProfileOutcome, Wishes, profile

PROGRAM: Final = "narwhal-profile"
DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
_DESCRIPTION: Final = """\
Measures engines that have no other work and fits what a prompt and a batch cost on them. The profile store
(profiles.path of the fleet file) gets one row an engine. Every sample is kept as it is made: a run that was
stopped goes on where it was.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Progress goes to standard error, the result to standard output."""
    try:
        given = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    except SystemExit as ending:
        return int(ending.code or 0)
    try:
        config = read_fleet(given.fleet, os.environ).config
        outcome = profile(config, _options(given, config, env=os.environ), tell=_tell)
    except ConfigError as error:
        tell_problems(PROGRAM, error)
        return WRONG_USE
    except KeyboardInterrupt:
        _tell("stopped: the samples so far are kept, the same command goes on with them")
        return INTERRUPTED
    try:
        _show(outcome, config, as_json=given.json)
    except BrokenPipeError:  # whoever read has gone; the store is written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED if outcome.failed else DONE


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options(given: argparse.Namespace, config: FleetConfig, *, env: Mapping[str, str]) -> ProfileOptions:
    """Raises ConfigError with every problem."""
    problems: list[str] = []
    known = [spec.iid for spec in config.engines]
    only = () if given.only is None else tuple(name.strip() for name in given.only.split(","))
    problems += [
        f"--only {name or repr(name)}: the fleet has {', '.join(known)}" for name in only if name not in known
    ]
    if given.samples == "":
        problems.append("--samples must name a file, got ''")
    if given.repeats < 1:
        problems.append(f"--repeats must be at least 1, got {given.repeats}")
    if given.max_requests < 0:
        problems.append(f"--max-requests must be at least 0, got {given.max_requests}")
    wishes = Wishes(
        prompt_tokens=_lengths("--prompt-tokens", given.prompt_tokens, problems=problems),
        context_tokens=_lengths("--context-tokens", given.context_tokens, problems=problems),
    )
    key = ""
    try:
        if name := config.engine.engine_api_key_env:
            key = secret(env, name, named_by="engine.engine_api_key_env")
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    samples = _beside(Path(config.profiles.path)) if given.samples is None else Path(given.samples)
    return ProfileOptions(
        samples_path=samples,
        only=only,
        overwrite=given.overwrite,
        repeats=given.repeats,
        most_requests=given.max_requests,
        wishes=wishes,
        api_key=key,
    )


def _beside(store: Path) -> Path:
    return store.with_name(f"{store.stem}.samples.jsonl")


def _lengths(flag: str, text: str | None, *, problems: list[str]) -> tuple[int, ...]:
    """Different whole numbers, split by commas; () where the option was not given. One that is given and
    empty (a variable of the shell that is not set) asks for nothing that could be done."""
    if text is None:
        return ()
    try:
        lengths = tuple(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        lengths = ()
    if not lengths or min(lengths) < 1:
        problems.append(f"{flag} must be whole numbers of at least 1, split by commas, got {text!r}")
    return lengths


# --- the result --------------------------------------------------------------------------------------


def _show(outcome: ProfileOutcome, config: FleetConfig, *, as_json: bool) -> None:
    if as_json:
        document = {
            "schema": "narwhal.profile-run",
            "schema_version": 1,
            "profiles": [asdict(row) for row in outcome.profiles],
            "failed": dict(outcome.failed),
            "skipped": list(outcome.skipped),
        }
        print(json.dumps(document, indent=2))
        return
    for iid in outcome.skipped:
        print(f"{iid} has a row in {config.profiles.path} already (--overwrite measures it anew)")
    for iid, why in outcome.failed.items():
        print(f"{iid} has no new row: {why}")
    if outcome.profiles:
        console = plain_console()
        console.print(_table(outcome.profiles, config))
        print(f"written to {config.profiles.path}")


_COLUMNS: Final[Mapping[str, Callable[[EngineProfile], str]]] = {
    "engine": lambda row: row.iid,
    "prefill of 1,000 tokens": lambda row: f"{_prefill_s(row, 1000) * 1000:.1f} ms",
    "idle interval": lambda row: f"{row.tpot_intercept * 1000:.2f} ms",
    "per request": lambda row: f"{row.tpot_request_slope * 1e6:.2f} µs",
    "per 1,000 KV tokens": lambda row: f"{row.tpot_slope * 1e9:.2f} µs",
    "requests": lambda row: f"{row.decode_min_requests} to {row.decode_max_requests}",
    "KV tokens": lambda row: f"{row.decode_min_kv_tokens} to {row.decode_max_kv_tokens}",
}


def _prefill_s(row: EngineProfile, tokens: int) -> float:
    return (row.ttft_a * tokens + row.ttft_b) * tokens + row.ttft_c


def _table(rows: Sequence[EngineProfile], config: FleetConfig) -> Table:
    """An error above the limit of the fleet file is marked: narwhal-check will refuse that row."""
    table = Table(box=None, pad_edge=False)
    for title in (*_COLUMNS, "fit error", "cross-validated"):
        table.add_column(title)
    limits = config.profiles
    for row in rows:
        table.add_row(
            *(cell(row) for cell in _COLUMNS.values()),
            _error(row.decode_fit_mape, limits.max_decode_fit_mape),
            _error(row.decode_cv_mape, limits.max_decode_cv_mape),
        )
    return table


def _error(share: float, limit: float) -> str:
    return f"{share:.1%}" + (f", above {limit:.1%}" if share > limit else "")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, allow_abbrev=False, description=_DESCRIPTION)
    add = parser.add_argument
    add("--fleet", required=True, metavar="PATH", help="the fleet file")
    add("--only", metavar="ID,ID", help="measure these engines only")
    add("--overwrite", action="store_true", help="measure anew what has a row or samples already")
    add("--samples", metavar="PATH", help="samples file (beside the profile store)")
    add(
        "--repeats",
        type=int,
        default=3,
        metavar="N",
        help="measurements of each point (3); the median counts",
    )
    add("--max-requests", type=int, default=0, metavar="N",
        help="largest batch (serving.max_connections over the engines that decode)")  # fmt: skip
    add("--prompt-tokens", metavar="N,N", help="prompt lengths (six from 64 to 16384)")
    add("--context-tokens", metavar="N,N", help="context lengths (three from 128 to 2048)")
    add("--json", action="store_true", help="the result as a document")
    add("--version", action="version", version=f"{PROGRAM} {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
