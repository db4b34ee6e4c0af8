"""Secrets from the environment: named by a field or option, stripped, never shown."""

from __future__ import annotations

from collections.abc import Mapping

from narwhal.errors import ConfigError


def secret(env: Mapping[str, str], name: str, *, named_by: str) -> str:
    """The stripped value of variable `name`, which `named_by` (a field or option) refers to.

    Raises ConfigError when it is not set, blank, or holds a control character; the value is not shown.
    """
    if name not in env:
        raise ConfigError(f"{named_by} names {name}, which is not set")
    value = env[name].strip()
    if not value:
        raise ConfigError(f"{named_by} names {name}, which is blank")
    if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in value):
        raise ConfigError(f"{named_by} names {name}, whose value holds a control character")
    return value
