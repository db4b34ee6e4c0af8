"""`narwhal engine env|command`. Exit status 0 done, 1 not written, 2 wrong usage or configuration."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from narwhal.cli.engine.env_files import write_env_files
from narwhal.cli.engine.launch import launch_of
from narwhal.cli.problems import tell_problems
from narwhal.config.load import FleetReading, read_fleet
from narwhal.config.secret import secret
from narwhal.errors import ConfigError

DONE: Final = 0
FAILED: Final = 1
WRONG_USE: Final = 2

_NAMED_BY: Final = "engine.engine_api_key_env"


def main(argv: Sequence[str] | None = None) -> int:
    """Problems go to standard error, one line each, without a traceback."""
    try:
        options = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    except SystemExit as ending:
        return int(ending.code or 0)
    try:
        reading = read_fleet(options.fleet, os.environ)
        _known(reading, options.iid)
        return _env(reading, options) if options.command == "env" else _command(reading, options)
    except ConfigError as error:
        tell_problems(f"narwhal engine {options.command}", error)
        return WRONG_USE
    except BrokenPipeError:  # whoever read has gone (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def _known(reading: FleetReading, iid: str) -> None:
    known = [spec.iid for spec in reading.config.engines]
    if iid not in known:
        near = difflib.get_close_matches(iid, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"
        raise ConfigError(f"--iid {iid} is no engine of {reading.path}{hint}")


def _env(reading: FleetReading, options: argparse.Namespace) -> int:
    key = _key(reading, os.environ)
    try:
        written = write_env_files(Path(options.out), key)
    except OSError as error:
        # Of the system's own words: the key is in none of them.
        print(f"narwhal engine env: {options.out} cannot be written: {error.strerror}", file=sys.stderr)
        return FAILED
    for path in written:
        print(path)
    return DONE


def _key(reading: FleetReading, env: Mapping[str, str]) -> str:
    """Raises ConfigError: without a credential there is nothing to write."""
    name = reading.config.engine.engine_api_key_env
    if not name:
        raise ConfigError(f"{reading.path}: {_NAMED_BY} names no variable: this fleet's engines want no key")
    return secret(env, name, named_by=_NAMED_BY)


def _command(reading: FleetReading, options: argparse.Namespace) -> int:
    launch = launch_of(reading, options.iid)
    if options.json:
        print(json.dumps(launch.document(), indent=2))
        return DONE
    if options.script:
        print(launch.script())
        return DONE
    for note in launch.notes:
        print(f"# {note}")
    print(f"{launch.shell()}\n\n{launch.docker()}")
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="narwhal engine", description="How the engines of a fleet file are started.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="env|command")
    env = commands.add_parser(
        "env",
        allow_abbrev=False,
        help="write the engines' key into files",
        description="Writes engine.env (NARWHAL_ENGINE_API_KEY) and container.env (VLLM_API_KEY), mode 0600, "
        f"from the variable that {_NAMED_BY} names. The key is never printed.",
    )
    env.add_argument("--out", required=True, metavar="DIR", help="made if missing, mode 0700")
    command = commands.add_parser(
        "command",
        allow_abbrev=False,
        help="print the command lines that start an engine",
        description="Prints the `vllm serve` and the `docker run` line of one engine. Neither holds the key.",
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="environment and arguments as a document")
    form.add_argument(
        "--script", action="store_true", help="a shell script for a supervisor that sets container.env"
    )
    for one in (env, command):
        one.add_argument("--fleet", required=True, metavar="PATH", help="the fleet file")
        one.add_argument("--iid", required=True, metavar="ID", help="engine ID")
    return parser
