"""A router pair under load while its store is made to fail: what every drill of the store shares.

Judges are independent probers and the clients' own books, never what the routers say of themselves.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.bookkeepers import Crowd, crowd
from tests.support.fault_proxy import FaultProxy
from tests.support.prober import Prober, overlaps, probing
from tests.support.processes import eventually
from tests.support.router import Router, router_process


@dataclass
class Pair:
    """An owner and its standby, by name; `doors`: the proxy that each reaches the store through, if one."""

    routers: dict[str, Router] = field(default_factory=dict)
    doors: dict[str, FaultProxy] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        ready = [name for name, router in self.routers.items() if router.ready()]
        assert len(ready) == 1, ready
        return ready[0]

    def settled(self) -> bool:
        """One owns, the other stands by and is ready to take."""
        told = [router.get("/ready") for router in self.routers.values()]
        standbys = [one for one in told if one["status"] != "ready" and one.get("ready_to_take") is True]
        return len(standbys) == 1 and sum(one["status"] == "ready" for one in told) == 1

    def epoch(self) -> int:
        return max(int(router.get("/ready")["epoch"]) for router in self.routers.values())


@contextmanager
def router_pair(
    folder: Path, fleet: Mapping[str, Any], url_of: Callable[[str], str], *options: str
) -> Iterator[Pair]:
    """Routers `a` and `b`, each at its own store URL."""
    made = Pair()
    with ExitStack() as stack:
        for name, extra in (("a", ()), ("b", ("--standby",))):
            words = ("--redis-url", url_of(name), "--router-id", name, *options, *extra)
            made.routers[name] = stack.enter_context(router_process(folder / name, fleet, *words))
        yield made


@dataclass
class Drill:
    """One fault under load, and what was seen of it."""

    pair: Pair
    probers: list[Prober]
    clients: Crowd
    owner: str
    epoch: int
    began: float = field(default_factory=time.monotonic)
    healed_s: float = 0.0

    def unnoticed(self) -> None:
        """Same owner, same epoch, no request failed or refused."""
        assert (self.clients.failed, self.clients.refused) == ([], 0)
        assert (self.pair.owner, self.pair.epoch()) == (self.owner, self.epoch)


@contextmanager
def drill(pair: Pair, name: str, *, everybody: bool = False) -> Iterator[Drill]:
    """Load on the owner (or on whoever owns) and probers around a fault; ends when the pair has healed."""
    eventually(pair.settled, what="a settled pair before the drill")
    owner, urls = pair.owner, [router.url for router in pair.routers.values()]
    asked = urls if everybody else [pair.routers[owner].url]
    with probing(*urls) as probers, crowd(asked) as clients:
        seen = Drill(pair, list(probers), clients, owner, pair.epoch())
        yield seen
        fault_s = time.monotonic() - seen.began
        eventually(pair.settled, what=f"{name}: healed by itself")
        seen.healed_s = time.monotonic() - seen.began - fault_s
        time.sleep(0.3)
    assert overlaps(probers) == []
    assert all(prober.asked for prober in probers)
    print(
        f"\n{name}: fault {fault_s:.2f} s, settled {seen.healed_s:.2f} s after it, "
        f"served {clients.served()}, refused {clients.refused}, failed {len(clients.failed)}, "
        f"owner {seen.owner} -> {pair.owner}, epoch {seen.epoch} -> {pair.epoch()}"
    )


def hand_over(router: Router) -> bool:
    """Orders the owner to yield. False: no standby is known to be ready yet."""
    request = urllib.request.Request(
        f"{router.url}/narwhal/lifecycle/yield",
        data=json.dumps({}).encode(),
        headers={"content-type": "application/json"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status) == 200
    except urllib.error.HTTPError as refused:
        assert refused.code == 409, refused.read()
        return False
