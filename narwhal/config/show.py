"""`narwhal.effective-config` v1: every value that a router would run with, and where it came from."""

from __future__ import annotations

from typing import Any, Final

from narwhal.config.option_table import OPTIONS, Option
from narwhal.config.redis_url import shown
from narwhal.config.start import Start, with_address
from narwhal.model.settings import ServeOptions

SCHEMA: Final = "narwhal.effective-config"
SCHEMA_VERSION: Final = 1

_ATTRIBUTES: Final = {
    "fleet": "fleet_path",
    "journal": "journal_path",
    "graceful_timeout": "graceful_timeout_s",
    "standby_max_handoff_age": "standby_max_handoff_age_s",
}
"""Option key → attribute of ServeOptions, where they differ."""

_TIMINGS: Final = {
    "standby_probe_interval": "standby_probe_interval_s",
    "lease_ttl": "ttl_s",
    "lease_renew_interval": "renew_interval_s",
    "lease_safety_margin": "safety_margin_s",
}

_SECRETS: Final = ("redis_password_env", "control_key_env")
"""Options that name a variable: the name is shown, never its value."""

_OVERRIDES: Final = {
    "recovery.state_path": "state_path",
    "recovery.resume": "resume",
    "serving.graceful_timeout_s": "graceful_timeout",
}
"""Fleet field → the option that takes its place (--max-concurrent leaves the pool's size as it is)."""


def effective_config(start: Start, hostname: str) -> dict[str, Any]:
    """The document. `values` is by fleet path, `options` by option name; each entry has `value` and
    `source` (default, file, flag or environment). Holds no secret: of the store's address, no password.
    """
    options = with_address(start.options, hostname, port=start.options.port)
    by_key = {option.key: _entry(option, start, options=options) for option in OPTIONS}
    values = {
        path: {"value": value, "source": start.fleet.sources[path]}
        for path, value in start.fleet.values.items()
    }
    for path, key in _OVERRIDES.items():
        if key in start.given.sources:
            values[path] = dict(by_key[key])
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "digest": start.config.digest,
        "contract_complete": start.config.contract_complete,
        "values": values,
        "options": {option.name: by_key[option.key] for option in OPTIONS},
    }


def _entry(option: Option, start: Start, *, options: ServeOptions) -> dict[str, Any]:
    source = start.given.sources.get(option.key)
    if source is None:
        source = start.fleet.sources[option.fleet_field] if option.fleet_field else "default"
    return {"value": _value(option, start, options=options), "source": source}


def _value(option: Option, start: Start, *, options: ServeOptions) -> Any:
    if option.key == "redis_url":
        return shown(options.store) if options.store else None
    if option.key in _SECRETS:
        return start.given.value(option.key)
    if option.key in _TIMINGS:
        return getattr(options.timings, _TIMINGS[option.key])
    value = getattr(options, _ATTRIBUTES.get(option.key, option.key))
    if isinstance(value, tuple):
        value = ",".join(value)
    return None if value == "" else value
