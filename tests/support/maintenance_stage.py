"""A whole site for drills of maintenance: a store, two routers, engine hosts, and an operator's shell.

Routers have a control listener and a control key; the fleet has a contract and sidecars.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.engine_hosts import EngineHost, start_all
from tests.support.engines import call
from tests.support.processes import Process, eventually, python
from tests.support.redis import RedisServer, on, running
from tests.support.router import Router, fleet_document, router_process
from tests.support.sidecars import CONTRACT

ENV = {"THE_KEY": "opensesame-opensesame"}
MARK = "hello there"
"""In the body of every request of `tests.support.bookkeepers`, and of no probe."""
ENGINES = {"e0": "prefill", "e1": "decode", "e2": "decode"}
_CONTROL = re.compile(r", control on (http://\S+)")
QUICK: Mapping[str, Mapping[str, Any]] = {
    "controller": {"monitor_interval_s": 0.2},
    "engine": {"health_timeout_s": 2.0, "first_token_timeout_s": 60.0},
}


@dataclass(frozen=True, slots=True)
class Shell:
    """What one command said and how it ended."""

    status: int
    output: str


@dataclass
class Site:
    folder: Path
    redis: RedisServer
    hosts: dict[str, EngineHost]
    fleet: dict[str, Any]
    stack: ExitStack
    routers: dict[str, Router] = field(default_factory=dict)

    # --- routers ---------------------------------------------------------------------------------

    def start_router(self, name: str, *more: str) -> None:
        """A router that owns or is ready to take over."""
        options = (
            "--redis-url", f"redis://127.0.0.1:{self.redis.port}", "--router-id", name,
            "--control-port", "0", "--control-key-env", "THE_KEY", *more,
        )  # fmt: skip
        process = router_process(self.folder / name, self.fleet, *options, env=ENV)
        router = self.routers[name] = self.stack.enter_context(process)
        if "--standby" in more:
            eventually(
                lambda: router.get("/ready").get("ready_to_take") is True, what=f"{name} ready to take"
            )

    @property
    def owner(self) -> str:
        """The name of the router that controls the fleet, in a wave too; waits for one."""
        found: list[str] = []

        def controls() -> bool:
            found[:] = [name for name in self.routers if self._controls(name)]
            return bool(found)

        eventually(controls, what="an owner")
        return found[0]

    @property
    def standby(self) -> str:
        (other,) = set(self.routers) - {self.owner}
        return other

    def control(self, name: str) -> str:
        """Where a router takes orders."""
        lines = self.routers[name].process.lines
        (url,) = [match[1] for line in lines if (match := _CONTROL.search(line))]
        return url

    def urls(self) -> list[str]:
        return [router.url for router in self.routers.values()]

    def lifecycle(self, name: str = "") -> dict[str, Any]:
        """Of the owner, or of the named router."""
        document: dict[str, Any] = call("GET", f"{self.control(name or self.owner)}/narwhal/lifecycle")
        return document

    def row(self, iid: str, name: str = "") -> dict[str, Any]:
        row: dict[str, Any] = self.lifecycle(name)["engines"][iid]
        return row

    # --- takeovers -------------------------------------------------------------------------------

    def kill_owner(self) -> str:
        """kill -9; who owns then. The killed one comes back with `two_routers`."""
        before, other = self.owner, self.standby
        os.kill(self.routers[before].pid, signal.SIGKILL)
        self.routers[before].process.ended()
        eventually(lambda: self._controls(other), what=f"{other} owns")
        return other

    def yield_owner(self) -> str:
        other = self.standby
        assert self.narwhal("cluster", "yield", "--to", other).status == 0
        eventually(lambda: self._controls(other), what=f"{other} owns")
        return other

    def two_routers(self) -> None:
        """Whoever was killed is started again, and stands by ready like one that yielded."""
        for name, router in list(self.routers.items()):
            if not router.process.alive:
                self.start_router(name, "--standby")
        self._ready_to_take(self.standby)
        eventually(self._acquainted, what="the owner knows the standby")

    def _acquainted(self) -> bool:
        """Whoever asks the owner for other routers is told the standby, at its present address."""
        told = call("GET", f"{self.control(self.owner)}/narwhal/cluster")["routers"]
        return self.control(self.standby) in [row["control_url"] for row in told]

    def _ready_to_take(self, name: str) -> None:
        router = self.routers[name]
        eventually(lambda: router.get("/ready").get("ready_to_take") is True, what=f"{name} ready to take")

    def _controls(self, name: str) -> bool:
        router = self.routers[name]
        try:
            return router.process.alive and router.get("/ready")["control_ready"] is True
        except OSError:
            return False

    # --- an operator -----------------------------------------------------------------------------

    def begin(self, *words: str, router: str = "") -> Process:
        """`narwhal WORDS` with router (the owner's) and key."""
        where = ("--router", self.control(router or self.owner), "--control-key-env", "THE_KEY")
        return Process(python("narwhal.cli", *words, *where), env=ENV)

    def narwhal(self, *words: str, router: str = "") -> Shell:
        process = self.begin(*words, router=router)
        shell = Shell(process.ended(), process.output)
        assert ENV["THE_KEY"] not in shell.output
        return shell

    def placed(self, iid: str) -> int:
        """How many of an engine's last requests are clients'. The engine runs."""
        return self._seen(iid, MARK)

    def transfers(self, iid: str) -> int:
        """As `placed`, of those that hand KV over."""
        return self._seen(iid, "kv_transfer_params")

    def _seen(self, iid: str, text: str) -> int:
        requests = self.hosts[iid].engine.stats(requests=True)["requests"]
        return sum(text in one["body"] for one in requests)


@contextmanager
def site(folder: Path, **sections: Mapping[str, Any]) -> Iterator[Site]:
    """Everything up, router `a` owns, `b` is ready to take over."""
    with ExitStack() as stack:
        redis = stack.enter_context(running(on("redis-6.2"), folder))
        hosts = {iid: EngineHost(iid, role, folder) for iid, role in ENGINES.items()}
        for host in hosts.values():
            stack.callback(host.stop)
        start_all(list(hosts.values()))
        document = fleet_document([], engine_contract=dict(CONTRACT), **{**QUICK, **sections})
        fleet = {**document, "engines": [host.row for host in hosts.values()]}
        found = Site(folder, redis, hosts, fleet, stack)
        found.start_router("a")
        found.start_router("b", "--standby")
        found.two_routers()
        yield found
