"""The options of `narwhal drain`, `narwhal readmit` and `narwhal lifecycle`."""

from __future__ import annotations

import argparse
import math
from typing import Final

from narwhal.cli.asking import DEFAULT_ROUTER, KEY_TWIN, ROUTER_TWIN

WITHIN_S: Final = 600.0

_DRAIN: Final = """\
The engines leave placement at once, then their processes are put on record; running work goes on, also
when the deadline passes. An engine may be stopped when it is ready to stop: --wait tells when.

  narwhal drain e0 --wait && systemctl restart vllm@e0 && narwhal readmit e0 --wait

Orders may be repeated; a later --deadline counts. docs/lifecycle.md has the procedures.

Exit status: 0 done (with --wait: may be stopped), 1 refused, or with --wait the deadline passed,
2 wrong usage.
"""
_READMIT: Final = """\
A drained engine serves again when every check passed: health, attestation, model, process (newer than
the drained one), generation, kv_transfer, final_health. The first that fails leaves it blocked.

Exit status: 0 in service again, 1 refused or blocked (the sentence names engine and check), 2 wrong usage.
"""
_LIFECYCLE: Final = """\
Asks the router, and through it the owner. A standby's copy is shown, and said to be one, while no owner
answers. Exit status: 0 told, 1 no router answers, 2 wrong usage.
"""


def drain_parser() -> argparse.ArgumentParser:
    parser = _parser("drain", "Takes engines out of placement, to be restarted.", epilog=_DRAIN)
    _targets(parser)
    parser.add_argument(
        "--deadline", type=_seconds, metavar="S", help="seconds that running work may take (300)"
    )
    parser.add_argument(
        "--wait", action="store_true", help="until the engines may be stopped; a takeover does not matter"
    )
    return parser


def readmit_parser() -> argparse.ArgumentParser:
    parser = _parser(
        "readmit", "Checks drained engines and takes them into placement again.", epilog=_READMIT
    )
    _targets(parser)
    parser.add_argument(
        "--wait",
        action="store_true",
        help="ask again while the engines are coming up (they fail health, their sidecars attestation), "
        "and through takeovers",
    )
    parser.add_argument(
        "--within", type=_seconds, default=WITHIN_S, metavar="S", help="with --wait: at most so long (600)"
    )
    return parser


def lifecycle_parser() -> argparse.ArgumentParser:
    parser = _parser("lifecycle", "Where the planned maintenance of each engine stands.", epilog=_LIFECYCLE)
    parser.add_argument("--watch", action="store_true", help="again and again until Ctrl-C")
    parser.add_argument(
        "--every", type=_seconds, default=1.0, metavar="S", help="seconds between looks of --watch (1)"
    )
    return parser


def _parser(command: str, description: str, *, epilog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"narwhal {command}",
        allow_abbrev=False,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--router",
        metavar="URL",
        help=f"a router, where it takes orders ({DEFAULT_ROUTER}); its owner is followed [{ROUTER_TWIN}]",
    )
    add("--control-key-env", metavar="NAME", help=f"variable with the routers' control key [{KEY_TWIN}]")
    add("--json", action="store_true", help="for programs: the lifecycle document on standard output")
    return parser


def _targets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help="engine ID: one, or all of the fleet")
    parser.add_argument("--wave", action="store_true", help="the whole fleet at once")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be finite seconds above 0")
    return value
