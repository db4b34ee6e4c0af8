"""Drills with real processes: masters that die, are replaced or go on alone (cluster.md 8 and 9)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.engines import engine_process
from tests.support.fault_proxy import fault_proxy
from tests.support.netns import cable
from tests.support.processes import eventually
from tests.support.redis import RedisServer, on, running
from tests.support.router import fleet_document
from tests.support.sentinel import follow, watched
from tests.support.store_drill import Pair, drill, hand_over, router_pair

UNNOTICED_S = 2.5
"""A promotion within this costs no request."""


def test_a_killed_master_with_a_sentinel_beside_each_node(tmp_path: Path) -> None:
    """The Sentinels promote; what was confirmed is there, and the lease goes on."""
    with ExitStack() as stack:
        group = stack.enter_context(watched(on("redis-6.2"), tmp_path / "store", nodes=3, down_after_ms=1000))
        engines = stack.enter_context(engine_process(2, "--prefill", "0", "--interval", "0.001"))
        fleet = fleet_document(engines.engines)
        pair = stack.enter_context(router_pair(tmp_path, fleet, lambda name: group.url))
        assert '"mode": "sentinel"' in json.dumps(pair.routers["a"].get("/narwhal/cluster"))
        with drill(pair, "master killed, Sentinels promote", everybody=True) as seen:
            killed, first = time.monotonic(), group.master()
            first.stop()
            group.await_master(other_than=first)
            promoted_s = time.monotonic() - killed
            time.sleep(1.0)
        print(f"promoted after {promoted_s:.2f} s")
        if promoted_s <= UNNOTICED_S - 0.5:
            seen.unnoticed()
        assert seen.clients.failed == []


@dataclass
class Nodes:
    """Three servers without Sentinels: the drill promotes by hand and moves the routers by their proxies."""

    servers: Sequence[RedisServer]
    pair: Pair

    def move(self, name: str, to: RedisServer) -> None:
        door = self.pair.doors[name]
        door.target = ("127.0.0.1", to.port)
        door.cut()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """A majority of the three must have a write: one replica."""
    with ExitStack() as stack:
        servers = [stack.enter_context(running(on("valkey"), tmp_path / f"node{at}")) for at in range(3)]
        follow(servers[0], servers[1:])
        engines = stack.enter_context(engine_process(2, "--prefill", "0", "--interval", "0.001"))
        doors = {name: stack.enter_context(fault_proxy(servers[0].port)) for name in ("a", "b")}
        pair = stack.enter_context(
            router_pair(
                tmp_path,
                fleet_document(engines.engines),
                lambda name: f"redis://127.0.0.1:{doors[name].port}",
                *("--redis-min-replicas", "1"),
            )
        )
        pair.doors = doors
        yield Nodes(servers, pair)


def leave(replica: RedisServer) -> None:
    """It stays a replica, of nobody who answers: what it has grows old."""
    with replica.client() as client:
        client.replicaof("127.0.0.1", "1")


def promote(server: RedisServer, *, followed_by: Sequence[RedisServer] = ()) -> None:
    with server.client() as client:
        client.replicaof("NO", "ONE")
    for other in followed_by:
        with other.client() as client:
            client.replicaof("127.0.0.1", str(server.port))


def test_a_promotion_that_loses_and_one_that_leaves_a_master_alone(nodes: Nodes) -> None:
    """Loss: a replica that missed a whole handover is promoted; it still names the owner before. The present
    owner puts its record back and nobody else serves. Then that master is cut off with the owner: it cannot
    confirm alone, and the others elect."""
    first, good, behind = nodes.servers
    pair = nodes.pair
    with drill(pair, "promoted with loss", everybody=True) as seen:
        leave(behind)
        eventually(lambda: hand_over(pair.routers[seen.owner]), what="handover")
        eventually(lambda: any(router.ready() for router in pair.routers.values()), what="the next owner")
        later, epoch = pair.owner, pair.epoch()
        lost = time.monotonic()
        first.stop()
        good.stop()
        with behind.client() as client:
            old = client.hget("narwhal:{simulated}:lease", "owner")
        good.start()
        promote(behind, followed_by=[good])
        for name in ("a", "b"):
            nodes.move(name, behind)
        promoted_s = time.monotonic() - lost
        time.sleep(1.0)
    print(f"promoted after {promoted_s:.2f} s, its record named {old}, {later} owned")
    assert (old, later != old) == (seen.owner, True)
    assert pair.epoch() >= epoch
    isolated(nodes, behind, good)


def isolated(nodes: Nodes, alone: RedisServer, other: RedisServer) -> None:
    pair, third = nodes.pair, nodes.servers[0]
    third.start()
    follow_more(alone, third)
    with drill(pair, "master isolated with the owner", everybody=True) as seen:
        standby = next(name for name in pair.routers if name != seen.owner)
        promote(other, followed_by=[third])
        nodes.move(standby, other)
        eventually(lambda: not pair.routers[seen.owner].ready(), what="the lonely owner stops")
        eventually(lambda: pair.routers[standby].ready(), what="the others elect")
        with alone.client() as client:
            client.replicaof("127.0.0.1", str(other.port))
        nodes.move(seen.owner, other)
    assert (pair.owner, pair.epoch() > seen.epoch) == (standby, True)


def follow_more(master: RedisServer, replica: RedisServer) -> None:
    with replica.client() as client:
        client.replicaof("127.0.0.1", str(master.port))
    master.wait_until(lambda client: client.info("replication")["connected_slaves"] == 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_connections_that_are_half_open(tmp_path: Path) -> None:
    """The cable to Redis is pulled: no packet, no reset. Connections are given up and made anew."""
    with ExitStack() as stack:
        wire = stack.enter_context(cable())
        server = RedisServer(on("redis-server"), tmp_path, bind="0.0.0.0", protected_mode="no")
        server.host, server.prefix = wire.address, wire.inside
        stack.callback(server.stop)
        server.start()
        engines = stack.enter_context(engine_process(2, "--prefill", "0", "--interval", "0.001"))
        fleet = fleet_document(engines.engines)
        url = f"redis://{wire.address}:{server.port}"
        pair = stack.enter_context(router_pair(tmp_path, fleet, lambda name: url))
        with drill(pair, "half-open connections, 2 s") as seen:
            wire.pull()
            time.sleep(2.0)
            wire.plug()
            time.sleep(1.5)
        seen.unnoticed()
        with drill(pair, "half-open connections past the deadline", everybody=True) as seen:
            wire.pull()
            eventually(lambda: not any(router.ready() for router in pair.routers.values()), what="fenced")
            wire.plug()
        assert pair.epoch() > seen.epoch
