"""Store, engines, routers, doors and load balancer of one row, and their repair after a fault."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis

from narwhal.cli.demo.machines import Site, StartFailed, free_port
from narwhal.cli.drill.door import Door
from narwhal.cli.drill.lease_watch import LeaseWatch, Sight
from narwhal.cli.drill.machines import (
    RouterMachine,
    StoreMachine,
    balancer_config,
    start_balancer,
    until,
)

NAMES: Final = "abcdefgh"
ENGINES: Final = 4
SEATS: Final = 4096


@dataclass(frozen=True, slots=True)
class Needs:
    """What a row needs beside store, engines and routers."""

    own_store: bool = False
    doors: bool = False
    replicas: int = 0
    warden: bool = False
    failsafe: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """What the whole drill runs with. `server`: path of the store's program; `redis_url`: an operator's own
    store instead, "" for none. `haproxy`: (program, text of its configuration) or None."""

    server: str
    redis_url: str = ""
    routers: int = 2
    haproxy: tuple[str, str] | None = None
    interval_s: float = 0.02


@dataclass(slots=True)
class Stage:
    """Made by `staged`. `owner` is the router that holds the lease, as the record says."""

    site: Site
    setting: Setting
    needs: Needs
    cluster: str
    stores: list[StoreMachine] = field(default_factory=list)
    fallen: list[StoreMachine] = field(default_factory=list)
    doors: dict[str, Door] = field(default_factory=dict)
    routers: list[RouterMachine] = field(default_factory=list)
    front: str = ""
    watch: LeaseWatch | None = None

    @property
    def store(self) -> StoreMachine:
        """The server that counts now; the others are its replicas."""
        return self.stores[0]

    @property
    def lease(self) -> Sight:
        assert self.watch is not None and self.watch.last is not None
        return self.watch.last

    @property
    def owner(self) -> RouterMachine:
        return next(one for one in self.routers if one.name == self.lease.owner)

    @property
    def owner_pid(self) -> int:
        """The process that serves: a warden's child where there is one."""
        return self.lease.pid

    @property
    def others(self) -> list[RouterMachine]:
        return [one for one in self.routers if one is not self.owner]

    def door_of(self, router: RouterMachine) -> Door:
        return self.doors[router.name]

    def client(self) -> Redis:
        if self.stores:
            return self.store.client()
        return Redis.from_url(self.setting.redis_url, protocol=2, socket_timeout=0.5, decode_responses=True)

    async def promote_a_replica(self) -> None:
        """The first replica becomes the master that counts; the dead one is forgotten."""
        self.fallen.append(self.stores.pop(0))
        await self.store.promote()
        for replica in self.stores[1:]:
            await replica.replicates(self.store.port)
        for door in self.doors.values():
            door.lead_to(self.store.port)

    async def set_up(self) -> None:
        await self._start_stores()
        fleet = await self._start_engines()
        for name in NAMES[: self.setting.routers]:
            words = [f"--fleet={fleet}", f"--redis-url={await self._store_url(name)}", *self._options()]
            self.routers.append(RouterMachine(self.site, name, words=words))
        await asyncio.gather(*(router.start() for router in self.routers))
        self.watch = LeaseWatch(f"narwhal:{{{self.cluster}}}:lease", self.client)
        if self.setting.haproxy is not None:
            await self._start_balancer(*self.setting.haproxy)

    def _options(self) -> list[str]:
        names = ",".join(NAMES[: self.setting.routers])
        failsafe = [f"--failsafe={names}"] if self.needs.failsafe else []
        # Nobody asks a Sentinel here: one replica, the later master's own, must be enough.
        waits = ["--redis-min-replicas=1"] if self.needs.replicas else []
        return [f"--cluster={self.cluster}", *failsafe, *waits]

    async def _start_stores(self) -> None:
        if self.setting.redis_url:
            return
        for number in range(1 + self.needs.replicas):
            store = StoreMachine(self.site, self.setting.server, name=f"store-{number}")
            await store.start()
            self.stores.append(store)
        for replica in self.stores[1:]:
            await replica.replicates(self.store.port)
            await until(replica.in_step, what="replica in step")

    async def _store_url(self, name: str) -> str:
        if not self.stores:
            return self.setting.redis_url
        if not self.needs.doors:
            return f"redis://127.0.0.1:{self.store.port}"
        door = self.doors[name] = Door(self.store.port)
        await door.listen()
        return f"redis://127.0.0.1:{door.port}"

    async def _start_engines(self) -> Path:
        words = ["--engines", str(ENGINES), "--interval", str(self.setting.interval_s), "--prefill", "0.01"]
        machine = self.site.narwhal("engines", "simulate", *words)
        urls: list[str] = []

        async def all_told() -> bool:
            lines = [line.split() for line in machine.log.read_text().splitlines()]
            urls[:] = [line[1] for line in lines if len(line) == 3 and line[1].startswith("http://")]
            return len(urls) == ENGINES

        await until(all_told, what="engines answer", machine=machine)
        path = self.site.folder / "fleet.json"
        path.write_text(json.dumps(_fleet(urls), indent=2), encoding="utf-8")
        return path

    async def _start_balancer(self, program: str, config: str) -> None:
        front, ports = free_port(), [router.port for router in self.routers]
        text = balancer_config(config, front, ports=ports)
        self.front = await start_balancer(self.site, program, config=text, front=front)

    async def whole(self) -> None:
        """Every router runs, one owns, all others could take over, and the owner knows it."""
        for door in self.doors.values():
            door.reopen()
        while self.fallen:
            await self._rejoin(self.fallen.pop())
        await until(self._settled, what="an owner and ready standbys", within_s=90.0)

    async def _rejoin(self, store: StoreMachine) -> None:
        """An old master comes back as a replica, with nothing of its own."""
        store.wipe()
        await store.start()
        await store.replicates(self.store.port)
        await until(store.in_step, what="the old master in step as a replica")
        self.stores.append(store)

    async def _settled(self) -> bool:
        """An ended router is started again: its last streams may have kept it a while."""
        for router in self.routers:
            if not router.running:
                await router.start()
        if self.watch is None or self.watch.last is None or self.watch.last.state != "held":
            return False
        if self.owner_unknown():
            return False
        told = await asyncio.gather(*(router.document("/ready") for router in self.routers))
        ready = [
            one is not None and (one["status"] == "ready" or one.get("ready_to_take") is True) for one in told
        ]
        owns = [one is not None and one["status"] == "ready" for one in told]
        return all(ready) and sum(owns) == 1 and await self._owner_sees_standbys()

    def owner_unknown(self) -> bool:
        return self.lease.owner not in {router.name for router in self.routers}

    async def _owner_sees_standbys(self) -> bool:
        document = await self.owner.document("/narwhal/cluster")
        rows = (document or {}).get("routers", ())
        return sum(bool(row["ready_to_take"]) for row in rows) == len(self.routers) - 1

    async def close(self) -> None:
        if self.watch is not None:
            await self.watch.stop()
        for door in self.doors.values():
            await door.aclose()
        await asyncio.to_thread(self.site.close)
        if self.setting.redis_url:
            await self._clean_up()

    async def _clean_up(self) -> None:
        """From an operator's store: the keys of this drill's own cluster, and nothing else."""
        async with self.client() as client:
            async for key in client.scan_iter(match=f"narwhal:{{{self.cluster}}}:*", count=1000):
                await client.delete(key)


def _fleet(urls: Sequence[str]) -> dict[str, Any]:
    """Half of the engines prefill, half decode; admission is open and no seat is short."""
    half = len(urls) // 2
    return {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": "simulated",
        "engines": [
            {"iid": f"e{n}", "url": url, "role": "prefill" if n < half else "decode"}
            for n, url in enumerate(urls)
        ],
        "slo": {"ttft_s": 2.0, "tpot_s": 1.0},
        "serving": {"admission": "open", "max_connections": SEATS},
        "engine": {"first_token_timeout_s": 20.0},
    }


@contextlib.asynccontextmanager
async def staged(folder: Path, setting: Setting, *, needs: Needs) -> AsyncIterator[Stage]:
    """A cluster of its own name in a folder of its own; nothing of it is left behind."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    stage = Stage(Site(folder), setting, needs, cluster=f"drill-{secrets.token_hex(4)}")
    try:
        try:
            await stage.set_up()
            await stage.whole()
        except TimeoutError as error:
            raise StartFailed(f"the cluster did not come up: {error}") from None
        yield stage
    finally:
        await stage.close()
