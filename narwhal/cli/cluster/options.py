"""The options of `narwhal cluster`. Those that a router has too keep their names, twins and rules."""

from __future__ import annotations

import argparse
from typing import Final

from narwhal.config.option_table import BY_KEY

_EPILOG: Final = """\
Where to look: --router, else --redis-url (or NARWHAL_REDIS_URL), else NARWHAL_ROUTER, else the router at
http://127.0.0.1:8000.
With --redis-url the records themselves are read, which needs no router to be up.
Exit status: 0 done, 1 it could not be done (the store or router is away, the order was refused),
2 wrong usage or configuration (also: no such cluster, wrong password).
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="narwhal cluster",
        allow_abbrev=False,
        description="The router cluster: who owns, since when, and orders to it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    looking = _looking()
    commands.add_parser("status", parents=[looking], help="owner, routers, claims, totals, store")
    history = commands.add_parser("history", parents=[looking], help="the last changes of ownership")
    history.add_argument("--last", type=_positive, default=20, metavar="N", help="how many (20)")
    watch = commands.add_parser("watch", parents=[looking], help="status, again and again until Ctrl-C")
    watch.add_argument("--every", type=_interval, default=1.0, metavar="S", help="seconds between looks (1)")
    handing = commands.add_parser("yield", parents=[looking], help="the owner hands over to a standby")
    handing.add_argument("--to", metavar="ID", help="the standby that shall own (default: the best one)")
    handing.add_argument(
        "--control-key-env",
        metavar="NAME",
        help="variable with the routers' control key [NARWHAL_CONTROL_KEY_ENV]",
    )
    _depose(commands.add_parser("depose", parents=[looking], help="end a tenure whose owner cannot yield"))
    _timings(
        commands.add_parser("timings", parents=[_output()], help="check a set of times, and what follows")
    )
    commands.add_parser("drill", add_help=False, help="faults on a cluster of its own, judged from outside")
    return top


def _output() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    shared.add_argument("--json", action="store_true", help="for programs")
    return shared


def _looking() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False, allow_abbrev=False, parents=[_output()])
    add = shared.add_argument
    add("--redis-url", metavar="URL", help="the store, as narwhal-serve has it [NARWHAL_REDIS_URL]")
    add("--redis-password-env", metavar="NAME", help=BY_KEY["redis_password_env"].doc)
    add("--cluster", metavar="NAME", help="default: the only one in the store [NARWHAL_CLUSTER]")
    add("--router", "--url", metavar="URL", help="ask this router instead of the store [NARWHAL_ROUTER]")
    return shared


def _depose(command: argparse.ArgumentParser) -> None:
    command.add_argument("--reason", required=True, metavar="TEXT", help="is kept in the log")
    command.add_argument(
        "--expected",
        metavar="HOLDER[/SEQ]",
        help="whose lease, as status shows it; with /SEQ only if it was not renewed since (default: asks)",
    )


def _timings(command: argparse.ArgumentParser) -> None:
    for key in ("lease_ttl", "lease_renew_interval", "lease_safety_margin", "standby_probe_interval"):
        option = BY_KEY[key]
        command.add_argument(
            option.flag, metavar="S", help=f"{option.doc} ({option.default:g}) [{option.twin}]"
        )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _interval(text: str) -> float:
    value = float(text)
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError("must be 0.05 to 3600 seconds")
    return value
