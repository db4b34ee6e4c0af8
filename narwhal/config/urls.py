"""URLs of engines and routers, and the `${NAME}` references that may stand for them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class UrlProblem(ValueError):
    """What is wrong, to follow the path in a message."""


def resolve(text: str, env: Mapping[str, str]) -> str:
    """`text`, or the stripped value of the variable when `text` is exactly `${NAME}`.

    Raises UrlProblem for a partial reference, an unset or blank variable, or a reference inside its value.
    """
    if "${" not in text:
        return text
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise UrlProblem("must be a URL or exactly ${NAME}, with nothing around or inside")
    name = match[1]
    value = env.get(name, "").strip()
    if not value:
        raise UrlProblem(f"refers to ${{{name}}}, which is {'blank' if name in env else 'not set'}")
    if "${" in value:
        raise UrlProblem(f"refers to ${{{name}}}, whose value holds another reference")
    return value


def reference_in(text: str) -> str:
    """The variable's name when `text` is exactly `${NAME}`, else ""."""
    match = _REFERENCE.fullmatch(text)
    return match[1] if match else ""


def checked(text: str) -> str:
    """An http(s) URL with a host, less a trailing slash. Raises UrlProblem, which never shows a password."""
    if re.search(r"[\s\x00-\x1f\x7f]", text):
        raise UrlProblem("must not hold white space or control characters")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise UrlProblem("is not a URL (an IPv6 address stands in brackets)") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise UrlProblem("must be a URL that begins with http:// or https://")
    if "@" in parts.netloc:
        raise UrlProblem("must not hold a user name or password")
    if parts.query or parts.fragment or text[-1] in "?#":
        raise UrlProblem("must have no query and no fragment")
    check_host(parts)
    return text.rstrip("/")


def check_host(parts: SplitResult) -> None:
    """Raises UrlProblem unless host and port of a split URL are usable."""
    host = parts.hostname or ""
    bracketed = "[" in parts.netloc
    if not bracketed and parts.netloc.count(":") > 1:
        raise UrlProblem("must write an IPv6 address in brackets")
    if not host:
        raise UrlProblem("must name a host")
    if bracketed:
        _check_ipv6(host)
    elif not _HOST.fullmatch(host):
        raise UrlProblem("must name a host of letters, digits, dots and hyphens")
    elif not all(0 < len(label) < 64 for label in host.removesuffix(".").split(".")):
        raise UrlProblem("must name a host whose parts have 1 to 63 characters")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or parts.netloc.endswith(":"):
        raise UrlProblem("must have a port from 1 to 65535")


def _check_ipv6(host: str) -> None:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise UrlProblem("holds no IPv6 address in its brackets") from None


def same_place(url: str) -> tuple[str, str, int, str]:
    """What makes two checked URLs one: scheme, host in lower case, port, path."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme], parts.path
