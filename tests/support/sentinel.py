"""A master with replicas and Sentinels as real processes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import redis

from narwhal.model.settings import StoreAddress
from tests.support.ports import free_port
from tests.support.redis import START_S, USER, RedisServer, binary, confirms, running

SERVICE = "main"


class Sentinel:
    """One Sentinel process. `down_after_ms`: the silence after which it calls the master down."""

    def __init__(self, kind: str, directory: Path, *, quorum: int, down_after_ms: int) -> None:
        self._kind = kind
        self._directory = directory
        self._quorum = quorum
        self._down_after_ms = down_after_ms
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def start(self, master: RedisServer) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / "sentinel.conf"
        path.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self._directory}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {master.port} {self._quorum}\n"
            f"sentinel down-after-milliseconds {SERVICE} {self._down_after_ms}\n"
            f"sentinel failover-timeout {SERVICE} 4000\n"
        )
        with open(self._directory / "sentinel.log", "ab") as log:
            words = [binary(self._kind), str(path), "--sentinel"]
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, protocol=2, socket_timeout=5, decode_responses=True)

    def master(self) -> dict[str, str]:
        """What it tells of the service. Raises redis.RedisError."""
        with self.client() as client:
            row: list[str] = client.execute_command("SENTINEL", "MASTER", SERVICE)
        return row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True))

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@dataclass
class Watched:
    """`nodes[0]` began as the master; who is master now, the Sentinels know."""

    nodes: list[RedisServer]
    sentinels: list[Sentinel] = field(default_factory=list)

    @property
    def address(self) -> StoreAddress:
        hosts = tuple(("127.0.0.1", one.port) for one in self.sentinels)
        return StoreAddress(hosts=hosts, service=SERVICE, username=USER)

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    def master(self) -> RedisServer:
        """As the last Sentinel tells it."""
        port = int(self.sentinels[-1].master()["port"])
        return next(node for node in self.nodes if node.port == port)

    def await_master(self, *, other_than: RedisServer) -> RedisServer:
        """The next master, when every Sentinel names it."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with suppress(redis.RedisError):
                named = {int(one.master()["port"]) for one in self.sentinels}
                if len(named) == 1 and other_than.port not in named:
                    return self.master()
            time.sleep(0.02)
        raise AssertionError("the Sentinels promoted nobody")

    def await_agreement(self) -> None:
        """Every Sentinel knows every other and every replica."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with suppress(redis.RedisError):
                if all(self._knows_all(one.master()) for one in self.sentinels):
                    return
            time.sleep(0.05)
        raise AssertionError("the Sentinels never found each other and the replicas")

    def _knows_all(self, master: dict[str, str]) -> bool:
        others, replicas = int(master["num-other-sentinels"]), int(master["num-slaves"])
        return (others, replicas) == (len(self.sentinels) - 1, len(self.nodes) - 1)


def follow(master: RedisServer, replicas: Sequence[RedisServer]) -> None:
    """Attaches the replicas and waits until they are in step."""
    for replica in replicas:
        with replica.client() as client:
            client.replicaof("127.0.0.1", str(master.port))
    master.wait_until(lambda client: confirms(client, len(replicas)))


@contextmanager
def watched(
    kind: str, directory: Path, *, nodes: int = 2, sentinels: int = 3, down_after_ms: int = 300
) -> Iterator[Watched]:
    """`nodes` servers, the first one the master of the others, and Sentinels that agree about them."""
    with ExitStack() as stack:
        servers = [stack.enter_context(running(kind, directory / f"node{at}")) for at in range(nodes)]
        follow(servers[0], servers[1:])
        made = Watched(servers)
        for at in range(sentinels):
            one = Sentinel(
                kind, directory / f"sentinel{at}", quorum=sentinels // 2 + 1, down_after_ms=down_after_ms
            )
            stack.callback(one.stop)
            one.start(servers[0])
            made.sentinels.append(one)
        made.await_agreement()
        yield made
