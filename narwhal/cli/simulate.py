"""`narwhal simulate`: simulated vLLM engines in one process (engines.md section 3)."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from narwhal.cli.problems import tell_problems
from narwhal.errors import ConfigError
from narwhal.sim.rack import Rack
from narwhal.sim.settings import SimSettings
from narwhal.sim.timing import load_profiles

_EPILOG = """\
Each engine prints one line: its name, its URL, and the URL of its side channel, where /sim/stats and
/sim/faults answer even while the engine refuses connections:

  curl -s URL/sim/stats
  curl -s URL/sim/faults -d '{"fault": "stall", "leg": "decode", "after": 3, "count": 1}'
  curl -s -X DELETE SIDE-URL/sim/faults

SIGTERM ends as vLLM does: streams close with finish_reason "abort", plain answers are cut.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM. Exit status 0 clean, 2 wrong usage (also: port in use)."""
    try:
        options = _parser().parse_args(argv)
    except SystemExit as ending:
        return int(ending.code or 0)
    try:
        engines = _settings(options)
        return uvloop.run(_run(options, engines))
    except ConfigError as error:
        tell_problems("narwhal simulate", error)
        return 2


async def _run(options: argparse.Namespace, engines: Sequence[SimSettings]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    rack = Rack(host=options.host, advertise=_advertised(options))
    for index, settings in enumerate(engines):
        port = options.port + index if options.port else 0
        side_port = options.side_port + index if options.side_port else 0
        try:
            stand = rack.add(settings, port=port, side_port=side_port)
        except OSError as error:
            rack.close()
            raise ConfigError(f"engine {settings.name}: cannot listen: {error}") from error
        print(f"{settings.name} {stand.url} {stand.side_url}", flush=True)
    await stop.wait()
    await rack.shut_down()
    return 0


def _advertised(options: argparse.Namespace) -> str:
    if options.advertise_host:
        return str(options.advertise_host)
    return socket.gethostname() if options.host in ("0.0.0.0", "::") else str(options.host)


def _settings(options: argparse.Namespace) -> list[SimSettings]:
    """One settings value per engine. Raises ConfigError with every problem found."""
    problems: list[str] = []
    names = _names(options, problems)
    key = _api_key(options, problems)
    profiles = load_profiles(Path(options.profiles)) if options.profiles else {}
    if options.profiles:
        problems += [
            f"{options.profiles}: has no row for engine {name}" for name in names if name not in profiles
        ]
    problems += _out_of_range(options) + _out_of_ports(options, len(names))
    if problems:
        raise ConfigError(problems)
    return [
        SimSettings(
            name=name,
            model=options.model,
            max_model_len=options.max_model_len,
            prefill_s=options.prefill,
            interval_s=options.interval,
            profile=profiles.get(name),
            kv_lease_s=options.kv_lease,
            kv_blocks=options.kv_blocks,
            max_num_seqs=options.max_num_seqs,
            recompute=options.load_failure == "recompute",
            natural_length=options.natural_length,
            api_key=key,
            version=options.engine_version,
        )
        for name in names
    ]


def _names(options: argparse.Namespace, problems: list[str]) -> list[str]:
    if not options.names:
        if options.engines < 1:
            problems.append(f"--engines {options.engines}: must be at least 1")
        return [f"e{index}" for index in range(max(1, options.engines))]
    names = [name.strip() for name in options.names.split(",")]
    if not all(names) or len(set(names)) < len(names):
        problems.append(f"--names {options.names}: must be different nonempty names, split by commas")
    if options.engines not in (1, len(names)):
        problems.append(f"--engines {options.engines}: --names gives {len(names)}")
    return names


def _api_key(options: argparse.Namespace, problems: list[str]) -> str:
    if not options.api_key_env:
        return ""
    key = os.environ.get(options.api_key_env, "")
    if not key:
        problems.append(f"--api-key-env {options.api_key_env}: the variable is not set")
    return key


def _out_of_range(options: argparse.Namespace) -> list[str]:
    problems = []
    for name in ("prefill", "interval", "kv_lease"):
        value = getattr(options, name)
        if not 0 <= value < float("inf"):
            problems.append(f"--{name.replace('_', '-')} {value}: must be finite seconds of at least 0")
    for name in ("max_model_len", "kv_blocks", "max_num_seqs", "natural_length"):
        value = getattr(options, name)
        if value < 1:
            problems.append(f"--{name.replace('_', '-')} {value}: must be at least 1")
    for name in ("port", "side_port"):
        value = getattr(options, name)
        if not 0 <= value <= 65535:
            problems.append(f"--{name.replace('_', '-')} {value}: must be 0 (any free port) to 65535")
    return problems


def _out_of_ports(options: argparse.Namespace, engines: int) -> list[str]:
    return [
        f"{flag} {first}: leaves no port for the last of {engines} engines"
        for flag, first in (("--port", options.port), ("--side-port", options.side_port))
        if 0 < first <= 65535 < first + engines - 1
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="narwhal simulate",
        allow_abbrev=False,
        description="Simulated vLLM engines: no GPU, no model, real HTTP and KV handoffs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    flat = SimSettings()
    add("--engines", type=int, default=1, metavar="N", help="how many engines this process serves (1)")
    add("--names", default="", metavar="A,B", help="their names (e0, e1, ...): rows of the profiles file")
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--advertise-host", default="", metavar="HOST", help="host that KV descriptors carry (the --host)")
    add("--port", type=int, default=0, help="port of the first engine, the others follow (0: any free)")
    add("--side-port", type=int, default=0, metavar="PORT", help="the same for the side channels (0)")
    add("--model", default=flat.model, help="served model name (simulated)")
    add("--max-model-len", type=int, default=flat.max_model_len, metavar="TOKENS", help="(32768)")
    add("--prefill", type=float, default=flat.prefill_s, metavar="S", help="seconds per prefill (0.02)")
    add("--interval", type=float, default=flat.interval_s, metavar="S", help="seconds per token (0.02)")
    add("--profiles", default="", metavar="FILE", help="narwhal.profiles file: time by load instead")
    add("--kv-lease", type=float, default=flat.kv_lease_s, metavar="S", help="unpulled KV is held (30)")
    add("--kv-blocks", type=int, default=flat.kv_blocks, metavar="N", help="KV blocks of 32 tokens (65536)")
    add("--max-num-seqs", type=int, default=flat.max_num_seqs, metavar="N", help="running at once (4096)")
    add("--natural-length", type=int, default=flat.natural_length, metavar="TOKENS",
        help="where a chat without max_tokens stops by itself (64)")  # fmt: skip
    add("--load-failure", choices=("fail", "recompute"), default="fail",
        help="what a decode does when the KV transfer fails (fail)")  # fmt: skip
    add("--api-key-env", default="", metavar="NAME", help="variable with the key that /v1 requires")
    add("--engine-version", default=flat.version, metavar="V", help="what /version says (0.32.0)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
