"""A Redis, two simulated engines and routers by name, all as processes, for drills."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.engines import EngineProcess, engine_process
from tests.support.processes import eventually
from tests.support.redis import RedisServer, on, running
from tests.support.router import Router, fleet_document, router_process

TTL_S = 5.0


@dataclass
class Stage:
    """One Redis, two engines, routers by name."""

    redis: RedisServer
    engines: EngineProcess
    folder: Path
    stack: ExitStack
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the fleet file says beside its engines."""
    routers: dict[str, Router] = field(default_factory=dict)
    lives: int = 0

    def router(self, name: str, *options: str, port: int = 0, module: str = "narwhal.cli.serve") -> Router:
        """A router that answers; `port` of the store's door that it uses (0: the store's own)."""
        store = f"redis://127.0.0.1:{port or self.redis.port}"
        self.lives += 1
        process = router_process(
            self.folder / f"{name}-{self.lives}",
            fleet_document(self.engines.engines, **self.sections),
            *("--redis-url", store, "--router-id", name, *options),
            module=module,
        )
        self.routers[name] = self.stack.enter_context(process)
        return self.routers[name]

    def pair(self, *options: str) -> tuple[Router, Router]:
        """An owner and its standby, both warm."""
        owner, standby = self.router("a", *options), self.router("b", "--standby", *options)
        eventually(lambda: standby.get("/ready").get("ready_to_take") is True, what="standby ready to take")
        return owner, standby


@contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        redis = stack.enter_context(running(on("valkey"), folder))
        engines = stack.enter_context(engine_process(2, "--prefill", "0", "--interval", "0.001"))
        yield Stage(redis, engines, folder, stack)


def epoch(router: Router) -> int:
    return int(router.get("/ready")["epoch"])


def served(router: Router) -> int:
    document: dict[str, Any] = router.get("/narwhal/handoff")
    return int(document["counters"]["served"])
