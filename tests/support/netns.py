"""A network namespace with one cable to this one, for faults that only a network can have."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.support.services import program

NUMBERS = 4096


@dataclass(frozen=True, slots=True)
class Cable:
    """`address` is the far end's. Pulled, packets vanish both ways and nobody is told."""

    namespace: str
    near: str
    address: str

    @property
    def inside(self) -> tuple[str, ...]:
        """Words before a command that runs at the far end."""
        return ("ip", "netns", "exec", self.namespace)

    def pull(self) -> None:
        """At the far end, so that here the link stays up and writes go on into nothing."""
        _ip("-n", self.namespace, "link", "set", "far", "down")

    def plug(self) -> None:
        _ip("-n", self.namespace, "link", "set", "far", "up")


def _ip(*words: str) -> None:
    subprocess.run([program("ip", package="iproute2"), *words], check=True, capture_output=True, text=True)


def _namespace() -> int:
    """Makes one under a number that no other process has: also the cable's ends and its network have it."""
    for turn in range(NUMBERS):
        number = (os.getpid() + turn) % NUMBERS
        try:
            _ip("netns", "add", f"narwhal{number}")
        except subprocess.CalledProcessError as error:
            if "exists" not in error.stderr:
                pytest.skip(f"no network namespace can be made here: {error.stderr.strip()}")
        else:
            return number
    raise AssertionError("every number of a network namespace is taken")


@contextmanager
def cable() -> Iterator[Cable]:
    """Skips where namespaces cannot be made (not root)."""
    number = _namespace()
    name, near = f"narwhal{number}", f"nw{number}"
    low = number % 60 * 4
    here, there = (f"10.231.{number // 60}.{low + end}" for end in (1, 2))
    try:
        _ip("link", "add", near, "type", "veth", "peer", "name", "far", "netns", name)
        _ip("addr", "add", f"{here}/30", "dev", near)
        _ip("link", "set", near, "up")
        _ip("-n", name, "addr", "add", f"{there}/30", "dev", "far")
        _ip("-n", name, "link", "set", "far", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        yield Cable(name, near, there)
    finally:
        _ip("netns", "del", name)
