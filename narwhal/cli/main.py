"""`narwhal`: the umbrella over the commands. Each command is imported only when it is called."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import Final

from narwhal import __version__

COMMANDS: Final = {
    "serve": "run one router (narwhal-serve)",
    "attest": "the sidecar that vouches for one engine (narwhal-attest)",
    "config": "show the effective configuration",
    "cluster": "who owns the fleet, orders to the cluster, drills",
    "drain": "take engines out of placement, to be restarted",
    "readmit": "check drained engines and let them serve again",
    "lifecycle": "where the maintenance of each engine stands",
    "check": "is this fleet fit to serve (narwhal-check)",
    "profile": "measure engines and fit their profiles (narwhal-profile)",
    "engine": "how an engine of the fleet is started, its key in files",
    "simulate": "run simulated engines",
    "demo": "a router pair, engines and clients on this machine",
}
"""Command → what it does; `narwhal.cli.<command>` has its `main(argv) -> exit status`."""


INTERRUPTED: Final = 130


def usage() -> str:
    rows = "\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items())
    return f"usage: narwhal [--version] COMMAND ...\n\n{rows}\n\nnarwhal COMMAND --help tells more."


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status of the command; 2 for an unknown one."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--version"]:
        print(f"narwhal {__version__}")
        return 0
    if words[:1] in (["-h"], ["--help"]):
        print(usage())
        return 0
    if not words or words[0] not in COMMANDS:
        print(_unknown(words) + usage(), file=sys.stderr)
        return 2
    return _called(words[0], words[1:])


def serve() -> int:
    return _called("serve", sys.argv[1:])


def check() -> int:
    return _called("check", sys.argv[1:])


def attest() -> int:
    return _called("attest", sys.argv[1:])


def profile() -> int:
    return _called("profile", sys.argv[1:])


def _called(command: str, words: list[str]) -> int:
    """Ctrl-C may come at any time, also while modules are loaded."""
    try:
        status: int = importlib.import_module(f"narwhal.cli.{command}").main(words)
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _unknown(words: list[str]) -> str:
    if not words:
        return ""
    near = difflib.get_close_matches(words[0], COMMANDS, n=1)
    return f"narwhal: unknown command {words[0]!r}" + (f"; did you mean {near[0]}?" if near else "") + "\n"


if __name__ == "__main__":
    sys.exit(main())
