"""`narwhal-serve`'s command line over its environment twins: flag, environment, file, default."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from narwhal import __version__
from narwhal.config import redis_url, urls
from narwhal.config.option_table import BY_KEY, OPTIONS, Option
from narwhal.config.rules import OneOf, shown
from narwhal.errors import ConfigError
from narwhal.model.settings import LONGEST_TTL_S, LeaseTimings, StoreAddress

FLAG: Final = "flag"
ENVIRONMENT: Final = "environment"
SERVICE_LINK: Final = "tcp://"

_PORTS: Final = ("port", "control_port")

_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """What command line and environment gave, checked. `values`: option key → value; `sources`: key →
    `flag` or `environment`. `store_password` is that of the URL, "" for none."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]
    store: StoreAddress | None
    store_password: str = field(repr=False)

    def value(self, key: str) -> Any:
        """The given value or the option's own default (None where it has none)."""
        return self.values.get(key, BY_KEY[key].default)

    @property
    def timings(self) -> LeaseTimings:
        return LeaseTimings(
            ttl_s=self.value("lease_ttl"),
            renew_interval_s=self.value("lease_renew_interval"),
            safety_margin_s=self.value("lease_safety_margin"),
            standby_probe_interval_s=self.value("standby_probe_interval"),
        )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parser(program: str = "narwhal-serve") -> argparse.ArgumentParser:
    """Every option takes text here; `given_options` checks the values, all in one go."""
    result = _Parser(prog=program, allow_abbrev=False, description="Serve a fleet.")
    result.add_argument("--version", action="version", version=f"narwhal {__version__}")
    for option in OPTIONS:
        text = f"{option.doc} [{option.twin}]".replace("%", "%%")
        if option.kind == "flag":
            result.add_argument(option.flag, action="store_true", default=None, help=text)
        else:
            result.add_argument(option.flag, metavar=option.name.rpartition("-")[2].upper(), help=text)
    return result


def given_options(
    argv: Sequence[str], env: Mapping[str, str], *, program: str = "narwhal-serve"
) -> GivenOptions:
    """Raises ConfigError with every problem; SystemExit(0) after --help and --version."""
    raw = vars(parser(program).parse_args(list(argv)))
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    problems: list[str] = []
    wrong: set[str] = set()
    for option in OPTIONS:
        text, source = _raw(option, raw.get(option.key), env=env)
        if source:
            name = option.flag if source == FLAG else option.twin
            try:
                values[option.key] = _READERS[option.kind](option, text)
                sources[option.key] = source
            except (_Problem, urls.UrlProblem, redis_url.RedisUrlProblem) as problem:
                problems.append(f"{name} {problem}")
                wrong.add(option.key)
        elif option.required:
            problems.append(f"{option.flag} is required (or {option.twin})")
    store, password = values.pop("redis_url", None) or (None, "")
    given = GivenOptions(values=values, sources=sources, store=store, store_password=password)
    problems += (
        ([] if "redis_url" in wrong else _without_store(given))
        + ([] if "control_port" in wrong else _without_control_port(given))
        + _voter_problems(given)
        + ([] if problems else timing_problems(given.timings))
    )
    if problems:
        raise ConfigError(problems)
    return given


def _raw(option: Option, flag: Any, *, env: Mapping[str, str]) -> tuple[Any, str]:
    """The text as given and where it came from, "" when it was not. A blank variable is not given."""
    if flag is not None:
        return flag, FLAG
    text = env.get(option.twin, "").strip()
    if not text or (option.key in _PORTS and text.startswith(SERVICE_LINK)):
        return None, ""
    return text, ENVIRONMENT


class _Problem(ValueError):
    """What is wrong with a value, to follow the option's name."""


def _text(option: Option, text: Any) -> str:
    if isinstance(option.rule, OneOf):
        text = text.lower()
    if not option.rule.accepts(text):
        raise _Problem(f"must be {option.rule.words}, got {shown(text)}")
    return str(text)


def _number(option: Option, text: Any) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _Problem(f"must be a number, got {json.dumps(text)}") from None
    if not math.isfinite(value):
        raise _Problem(f"must be a finite number, got {json.dumps(text)}")
    if not option.rule.accepts(value):
        raise _Problem(f"must be {option.rule.words}, got {text}")
    return value


def _integer(option: Option, text: Any) -> int:
    if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 18:
        raise _Problem(f"must be an integer, got {shown(text)}")
    value = int(text)
    if not option.rule.accepts(value):
        raise _Problem(f"must be {option.rule.words}, got {text}")
    return value


def _flag(option: Option, text: Any) -> bool:
    if text is True or str(text).lower() in _TRUE:
        return True
    if str(text).lower() in _FALSE:
        return False
    raise _Problem(f"must be true or false, got {shown(text)}")


def _url(option: Option, text: Any) -> str:
    return urls.checked(text)


def _store(option: Option, text: Any) -> tuple[StoreAddress, str]:
    return redis_url.parse(text)


_READERS: Final[Mapping[str, Callable[[Option, Any], Any]]] = {
    "text": _text,
    "number": _number,
    "integer": _integer,
    "flag": _flag,
    "url": _url,
    "store": _store,
}


def _without_store(given: GivenOptions) -> list[str]:
    if given.store is not None or "redis_url" in given.sources:
        return []
    return [
        f"{option.flag if given.sources[option.key] == FLAG else option.twin} needs --redis-url"
        for option in OPTIONS
        if option.needs_store and option.key in given.sources and given.values[option.key] is not False
    ]


def _without_control_port(given: GivenOptions) -> list[str]:
    source = given.sources.get("control_host")
    if source is None or "control_port" in given.sources:
        return []
    option = BY_KEY["control_host"]
    return [f"{option.flag if source == FLAG else option.twin} needs --control-port"]


def _voter_problems(given: GivenOptions) -> list[str]:
    voters = (given.values.get("failsafe") or "").split(",")
    twice = sorted({voter for voter in voters if voters.count(voter) > 1})
    return [f"--failsafe names {voter} twice" for voter in twice]


def timing_problems(timings: LeaseTimings) -> list[str]:
    """The relations of cluster.md section 4: with them one failed renewal never costs the lease."""
    ttl, renew, margin = timings.ttl_s, timings.renew_interval_s, timings.safety_margin_s
    attempt, probe = timings.attempt_timeout_s, timings.standby_probe_interval_s
    rounding = 1e-9
    room = ttl - margin
    problems = []
    if renew + 2 * attempt > room + rounding:
        problems.append(
            f"--lease-renew-interval + two attempts of {attempt:g} s must be ≤ "
            f"--lease-ttl - --lease-safety-margin ({room:g}), got {renew + 2 * attempt:g}"
        )
    if room + rounding < 3 * renew:
        problems.append(
            "--lease-ttl - --lease-safety-margin must be ≥ 3 x --lease-renew-interval "
            f"({3 * renew:g}), got {room:g}"
        )
    if ttl > LONGEST_TTL_S:
        problems.append(f"--lease-ttl must be ≤ {LONGEST_TTL_S:g}, got {ttl:g}")
    if margin + rounding < 0.1 * ttl:
        problems.append(f"--lease-safety-margin must be ≥ 0.1 x --lease-ttl ({0.1 * ttl:g}), got {margin:g}")
    if probe > renew + rounding:
        problems.append(
            f"--standby-probe-interval must be ≤ --lease-renew-interval ({renew:g}), got {probe:g}"
        )
    return problems
