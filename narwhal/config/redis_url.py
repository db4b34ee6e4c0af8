"""`--redis-url`: one server, a Unix socket, or Sentinels that know the master. Messages never show it whole:
it may hold a password.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from narwhal.config import urls
from narwhal.model.settings import StoreAddress

REDIS_PORT: Final = 6379
SENTINEL_PORT: Final = 26379
SCHEMES: Final = "redis://, rediss://, unix:// or redis+sentinel://host:port,host:port/service"


class RedisUrlProblem(ValueError):
    """What is wrong, to follow the option's name in a message."""


def parse(text: str) -> tuple[StoreAddress, str]:
    """The address and the password in it ("" for none). Raises RedisUrlProblem."""
    if re.search(r"[\s\x00-\x1f\x7f]", text):
        raise RedisUrlProblem("must not hold white space or control characters")
    scheme = text.partition("://")[0].lower()
    if "cluster" in scheme:
        raise RedisUrlProblem("names a Redis Cluster, which is not supported: one master holds all keys")
    if scheme not in ("redis", "rediss", "unix", "redis+sentinel") or "://" not in text:
        raise RedisUrlProblem(f"must begin with {SCHEMES}")
    credentials, rest = _split_credentials(text.partition("://")[2])
    try:
        parts = urlsplit(f"{scheme}://{rest}")
    except ValueError:
        raise RedisUrlProblem("is not a URL (an IPv6 address stands in brackets)") from None
    if parts.fragment or rest.endswith("#"):
        raise RedisUrlProblem("holds a # (write %23 inside a name or password)")
    user, _, password = credentials.partition(":")
    reader = {"unix": _unix, "redis+sentinel": _sentinel}.get(scheme, _server)
    return reader(parts, unquote(user)), unquote(password)


def _split_credentials(rest: str) -> tuple[str, str]:
    authority, slash, path = rest.partition("/")
    credentials, at, hosts = authority.rpartition("@")
    return (credentials, hosts + slash + path) if at else ("", rest)


def _server(parts: SplitResult, user: str) -> StoreAddress:
    if parts.query:
        raise RedisUrlProblem("must have no options after a ?")
    return StoreAddress(
        hosts=(_host(parts.netloc, REDIS_PORT),),
        db=_database(parts.path.strip("/")),
        username=user,
        tls=parts.scheme == "rediss",
    )


def _unix(parts: SplitResult, user: str) -> StoreAddress:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    database = _database(options.pop("db", ""))
    if options:
        raise RedisUrlProblem(f"has an unknown option {sorted(options)[0]!r} (only db)")
    if parts.netloc or not parts.path.strip("/"):
        raise RedisUrlProblem("must name an absolute socket path: unix:///run/redis.sock")
    return StoreAddress(socket_path=unquote(parts.path), db=database, username=user)


def _sentinel(parts: SplitResult, user: str) -> StoreAddress:
    if parts.query:
        raise RedisUrlProblem("must have no options after a ?")
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise RedisUrlProblem("must name the service: redis+sentinel://host:port,host:port/service")
    return StoreAddress(
        hosts=tuple(_host(host, SENTINEL_PORT) for host in parts.netloc.split(",")),
        service=unquote(service),
        db=_database(database),
        username=user,
    )


def _host(text: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"redis://{text}")
    try:
        urls.check_host(parts)
    except urls.UrlProblem as problem:
        raise RedisUrlProblem(str(problem)) from None
    return str(parts.hostname), parts.port or default_port


def _database(text: str) -> int:
    if not re.fullmatch(r"\d{0,5}", text):
        raise RedisUrlProblem("must name its database by number: redis://host:6379/0")
    return int(text or 0)


def shown(address: StoreAddress) -> str:
    """The address as a URL, without credentials."""
    if address.socket_path:
        return f"unix://{address.socket_path}" + (f"?db={address.db}" if address.db else "")
    hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in address.hosts)
    if address.service:
        return f"redis+sentinel://{hosts}/{address.service}" + (f"/{address.db}" if address.db else "")
    return f"{'rediss' if address.tls else 'redis'}://{hosts}/{address.db}"
