"""Everything that a router is started with: options, fleet file, environment, all problems at once."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from narwhal.config.check import BUILT_IN_CONNECTORS, BUILT_IN_DIALECTS
from narwhal.config.load import FleetReading, read_fleet
from narwhal.config.option_table import BY_KEY, ENV_PREFIX, OPTIONS
from narwhal.config.options import SERVICE_LINK, GivenOptions, given_options
from narwhal.config.secret import secret
from narwhal.errors import ConfigError
from narwhal.model.settings import FleetConfig, ServeOptions

JOURNAL_NAME: Final = "journal.jsonl"
ROUTER_ID_CHARS: Final = 128
_OF_COMMANDS: Final = frozenset({f"{ENV_PREFIX}ROUTER"})
"""What an operator's shell may have set for other commands."""
_SERVICES: Final = (ENV_PREFIX, f"{ENV_PREFIX}CONTROL_")


@dataclass(frozen=True, slots=True)
class Start:
    """`options` are effective; `given` and `fleet` know where each value came from. `warnings`:
    sentences for the log, may be empty."""

    options: ServeOptions
    fleet: FleetReading
    given: GivenOptions
    warnings: tuple[str, ...]

    @property
    def config(self) -> FleetConfig:
        return self.fleet.config


def read_start(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    known_connectors: Collection[str] = BUILT_IN_CONNECTORS,
    known_dialects: Collection[str] = BUILT_IN_DIALECTS,
    program: str = "narwhal-serve",
) -> Start:
    """Raises ConfigError with every problem of options and fleet file; SystemExit(0) after --version."""
    given = given_options(argv, env, program=program)
    problems: list[str] = []
    fleet = None
    secrets = {"redis_password_env": given.store_password, "control_key_env": ""}
    for option in secrets:
        try:
            if name := given.value(option):
                secrets[option] = secret(env, name, named_by=BY_KEY[option].flag)
        except ConfigError as error:
            problems += error.problems
    try:
        fleet = read_fleet(
            given.value("fleet"), env, known_connectors=known_connectors, known_dialects=known_dialects
        )
    except ConfigError as error:
        problems += error.problems
    if problems or fleet is None:
        raise ConfigError(problems)
    options = _effective(given, fleet.config, secrets=secrets)
    warnings = (*environment_warnings(env, _named_variables(given, fleet)), *fleet.warnings)
    warnings += _seats_warnings(options, fleet.config) + _key_warnings(options)
    return Start(options=options, fleet=fleet, given=given, warnings=warnings)


def _seats_warnings(options: ServeOptions, fleet: FleetConfig) -> tuple[str, ...]:
    seats = fleet.serving.max_connections
    if options.max_concurrent <= seats:
        return ()
    return (
        f"--max-concurrent {options.max_concurrent} is above serving.max_connections {seats}: requests "
        f"beyond that wait for a connection and fail after engine.pool_timeout_s",
    )


def _key_warnings(options: ServeOptions) -> tuple[str, ...]:
    if not options.failsafe or options.control_key:
        return ()
    return ("--failsafe without --control-key-env: routers on other hosts cannot be asked for a pledge",)


def _named_variables(given: GivenOptions, fleet: FleetReading) -> frozenset[str]:
    names = {given.value("redis_password_env"), given.value("control_key_env")}
    return fleet.variables | {name for name in names if name}


def _effective(given: GivenOptions, fleet: FleetConfig, *, secrets: Mapping[str, str]) -> ServeOptions:
    state_path = _or(given.value("state_path"), fleet.recovery.state_path)
    return ServeOptions(
        fleet_path=given.value("fleet"),
        host=_bare(given.value("host")),
        port=given.value("port"),
        control_host=_bare(given.value("control_host") or given.value("host")),
        control_port=given.value("control_port"),
        log_level=given.value("log_level"),
        log_format=given.value("log_format"),
        state_path=state_path,
        journal_path=_or(given.value("journal"), str(Path(state_path).parent / JOURNAL_NAME)),
        max_concurrent=_or(given.value("max_concurrent"), fleet.serving.max_connections),
        graceful_timeout_s=_or(given.value("graceful_timeout"), fleet.serving.graceful_timeout_s),
        resume=_or(given.value("resume"), fleet.recovery.resume),
        store=given.store,
        store_password=secrets["redis_password_env"],
        control_key=secrets["control_key_env"],
        cluster=_or(given.value("cluster"), default_cluster(fleet.model)),
        router_id=given.value("router_id") or "",
        advertise_url=given.value("advertise_url") or "",
        standby=given.value("standby"),
        standby_of=given.value("standby_of") or "",
        timings=given.timings,
        redis_min_replicas=given.value("redis_min_replicas"),
        standby_takeover_after=given.value("standby_takeover_after"),
        standby_max_handoff_age_s=given.value("standby_max_handoff_age"),
        failsafe=_listed(given.value("failsafe")),
        no_warden=given.value("no_warden"),
    )


def _bare(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _or(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def default_cluster(model: str) -> str:
    """The model in lower case, all outside `[a-z0-9._-]` as `-`."""
    return re.sub(r"[^a-z0-9._-]", "-", model.lower())


def with_address(
    options: ServeOptions, hostname: str, *, port: int, control_port: int | None = None
) -> ServeOptions:
    """The options with router ID and advertised URLs filled in, once the listeners' ports are known.

    `hostname` is the machine's name. A loopback --host is advertised as itself. With a control port orders
    are taken there: at the advertised host, or at a loopback --control-host.
    """
    name = re.sub(r"[^A-Za-z0-9._:-]", "-", hostname) or "router"
    tail = f":{port}"
    router_id = options.router_id or name[: ROUTER_ID_CHARS - len(tail)] + tail
    url = options.advertise_url or _url(options.host if _is_loopback(options.host) else name, port)
    control_url = url
    if control_port is not None:
        told = urlsplit(url).hostname or name
        control_url = _url(options.control_host if _is_loopback(options.control_host) else told, control_port)
    return replace(
        options,
        port=port,
        router_id=router_id,
        advertise_url=url,
        control_port=control_port,
        control_url=control_url,
    )


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def environment_warnings(env: Mapping[str, str], named: Collection[str]) -> list[str]:
    """One sentence for each NARWHAL_* variable that means nothing here; `named` ones are meant by others.

    A Kubernetes service link (NARWHAL_PORT=tcp://..., of a service narwhal or narwhal-control) is ignored and
    told once, with its kin.
    """
    twins = {option.twin for option in OPTIONS}
    warnings = []
    linked = [prefix for prefix in _SERVICES if env.get(f"{prefix}PORT", "").strip().startswith(SERVICE_LINK)]
    warnings += [
        f"{prefix}PORT is a Kubernetes service link and is ignored: "
        "set enableServiceLinks: false in the pod's spec"
        for prefix in linked
    ]
    theirs = tuple(f"{prefix}{kin}_" for prefix in linked for kin in ("PORT", "SERVICE"))
    for name in sorted(env):
        if (
            not name.startswith(ENV_PREFIX)
            or name in twins | _OF_COMMANDS
            or name in named
            or name.startswith(theirs)
        ):
            continue
        warnings.append(f"{name} is not a known variable" + _suggestion(name, twins))
    return warnings


def _suggestion(name: str, twins: Collection[str]) -> str:
    """Compares without the prefix that all have in common."""
    bare = {twin.removeprefix(ENV_PREFIX): twin for twin in sorted(twins)}
    near = difflib.get_close_matches(name.removeprefix(ENV_PREFIX), bare, n=1, cutoff=0.7)
    return f"; did you mean {bare[near[0]]}?" if near else ""
