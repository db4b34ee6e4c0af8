"""Which process an engine is: what its own `/version` and `/metrics` tell, read strictly.

Two engines that start together can tell the same start (it has 10 ms steps), so an identity tells one
engine's processes apart and never two engines.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from narwhal.errors import IdentityError
from narwhal.model.numbers import unix_time
from narwhal.model.plain_text import is_plain, shown

VERSION_PATH: Final = "/version"
METRICS_PATH: Final = "/metrics"
START_SERIES: Final = "process_start_time_seconds"

SAME_START_S: Final = 1e-6
"""Process starts that differ by no more are one: two texts of one number may round apart."""


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """`process_start`: Unix seconds, as `/metrics` tells them."""

    vllm_version: str
    process_start: float

    def started_with(self, other: EngineIdentity) -> bool:
        """Whether both have the same process start."""
        return abs(self.process_start - other.process_start) <= SAME_START_S

    @property
    def words(self) -> str:
        return f"vLLM {self.vllm_version} started at {self.process_start!r}"


def read_version(body: bytes) -> str:
    """The version in the answer of `GET /version`. Raises IdentityError."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    version = document.get("version") if isinstance(document, dict) else None
    if not isinstance(version, str) or not version:
        raise IdentityError(f"{VERSION_PATH} tells no version")
    if not is_plain(version):
        raise IdentityError(f"{VERSION_PATH} tells a version that is no version: {shown(version)}")
    return version


def read_process_start(body: bytes) -> float:
    """The process start in the answer of `GET /metrics`. Raises IdentityError.

    Several API server processes behind one port tell several starts, or none: such an engine has no
    identity that could be attested.
    """
    starts = set()
    for line in body.decode("utf-8", "replace").splitlines():
        name, _, rest = line.partition(" ")
        if name.partition("{")[0] == START_SERIES:
            starts.add(_seconds(rest.split(" ")[0]))
    if len(starts) != 1:
        told = f"{len(starts)} values of {START_SERIES}" if starts else f"no {START_SERIES}"
        raise IdentityError(f"{METRICS_PATH} tells {told}; run one API server process an engine")
    return starts.pop()


def _seconds(text: str) -> float:
    try:
        start = unix_time(float(text))
    except ValueError:
        start = None
    if start is None:
        raise IdentityError(f"{METRICS_PATH} tells a {START_SERIES} that is no time")
    return start
