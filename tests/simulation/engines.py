"""Engines as the fence sees them: each remembers the highest epoch it heard of, until it is restarted."""

from __future__ import annotations

from narwhal.fence import Epochs
from narwhal.model.engine import EngineSpec

ENGINES = tuple(EngineSpec(f"e{number}", f"http://e{number}") for number in range(3))
CLUSTER = "sim"
PREFILL, PROBE = b"prefill", b"probe"


class FencedEngines:
    """The fence that engines load, at every engine of the world."""

    def __init__(self) -> None:
        self._epochs = {spec.iid: Epochs() for spec in ENGINES}

    def refuses(self, iid: str, epoch: int, leg: bytes) -> int | None:
        """The higher epoch for which the engine answers 409; None: it takes the request."""
        return self._epochs[iid].superseded_by(f"{CLUSTER}/{epoch}".encode(), leg)

    def outbid(self, iid: str, by: int) -> None:
        """Somebody told the engine of a higher epoch than any it knows: another fleet of the same name."""
        if known := self._epochs[iid].highest.get(CLUSTER, 0):
            self._epochs[iid].superseded_by(f"{CLUSTER}/{known + by}".encode(), PROBE)

    def restart(self, iid: str) -> None:
        self._epochs[iid] = Epochs()

    @property
    def highest(self) -> int:
        """What the engines remember together."""
        return max(epochs.highest.get(CLUSTER, 0) for epochs in self._epochs.values())
