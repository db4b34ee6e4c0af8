"""`narwhal config show`: what a router started with these options would run with."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import Final

from narwhal.cli.problems import tell_problems
from narwhal.config.show import effective_config
from narwhal.config.start import read_start
from narwhal.errors import ConfigError

USAGE: Final = "usage: narwhal config show --fleet PATH [options of narwhal-serve]"
PROGRAM: Final = "narwhal config show"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the effective configuration as JSON, warnings on standard error. Status 0; 2 for bad usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if words[:1] != ["show"]:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        start = read_start(words[1:], os.environ, program=PROGRAM)
    except ConfigError as error:
        tell_problems(PROGRAM, error)
        return 2
    for warning in start.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return _print(json.dumps(effective_config(start, socket.gethostname()), indent=2, ensure_ascii=False))


def _print(text: str) -> int:
    """Writes to standard output; a reader that has gone (`| head`) is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
