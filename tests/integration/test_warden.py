"""The two processes of narwhal-serve with a store: signals, exit statuses, PID 1, the service manager."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.engines import EngineProcess, engine_process
from tests.support.fleets import fleet_document as small_fleet
from tests.support.fleets import write_fleet
from tests.support.processes import Process, eventually, python
from tests.support.redis import RedisServer, on, running
from tests.support.router import LISTENS, Router, fleet_document, router_process
from tests.support.services import program

NOWHERE = "redis://127.0.0.1:1"


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running(on("redis-server"), tmp_path_factory.mktemp("redis")) as server:
        yield server


class Site:
    """Routers of one test, each test a cluster of its own."""

    def __init__(self, folder: Path, stack: ExitStack, url: str) -> None:
        self.folder, self._stack, self.url = folder, stack, url
        self.fleet = write_fleet(folder, small_fleet(serving__admission="open"))

    def options(self, *more: str) -> list[str]:
        name = self.folder.name.lower().replace("[", "-").replace("]", "-")
        words = ["--fleet", self.fleet, "--port", "0", "--state-path", str(self.folder / "state.json")]
        return [*words, "--redis-url", self.url, "--cluster", name, "--router-id", "a", *more]

    def start(self, *more: str, env: dict[str, str] | None = None, before: tuple[str, ...] = ()) -> Process:
        process = Process([*before, *python("narwhal.cli.serve", *self.options(*more))], env=env)
        self._stack.callback(process.stop)
        return process

    def up(self, *more: str, env: dict[str, str] | None = None) -> Process:
        process = self.start(*more, env=env)
        process.wait_for(lambda lines: any(LISTENS.search(line) for line in lines))
        return process


def router_pid(process: Process) -> int:
    return next(int(found[1]) for line in process.lines if (found := LISTENS.search(line)))


@pytest.fixture
def site(tmp_path: Path, redis: RedisServer) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack, f"redis://127.0.0.1:{redis.port}")


# --- signals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_one_signal_to_the_warden_is_a_clean_end(site: Site, number: signal.Signals) -> None:
    process = site.up()
    process.send(number)
    assert process.ended() == 0, process.output
    assert not psutil.pid_exists(router_pid(process))
    assert "Traceback" not in process.output


def test_a_ctrl_c_that_reaches_both_processes_is_one_order(site: Site) -> None:
    process = site.up()
    for pid in (router_pid(process), process.pid, router_pid(process), process.pid):
        os.kill(pid, signal.SIGINT)
    assert process.ended() == 0, process.output
    assert "KeyboardInterrupt" not in process.output


def test_a_signal_at_any_time_of_the_start_is_a_clean_end(site: Site) -> None:
    """Also before the router's loop can take it, and then not as a death by SIGTERM."""
    for after_s in (0.2, 0.7):
        process = site.start()
        eventually(lambda one=process.pid: psutil.Process(one).children() != [], what="the fork")  # type: ignore[misc]
        time.sleep(after_s)
        process.send(signal.SIGTERM)
        assert process.ended() == 0, (after_s, process.output)


def test_a_router_that_does_not_follow_the_second_order_is_killed(site: Site) -> None:
    process = site.up()
    os.kill(router_pid(process), signal.SIGSTOP)
    began = time.monotonic()
    process.send(signal.SIGTERM)
    time.sleep(1.2)
    assert process.alive
    process.send(signal.SIGTERM)
    assert process.ended() == 1
    assert time.monotonic() - began > 3.0, "it had 2 s for its accounts"
    assert "ended by SIGKILL" in process.output


@contextmanager
def streaming(folder: Path, redis: RedisServer) -> Iterator[tuple[Router, EngineProcess]]:
    with engine_process(2, "--interval", "0.05") as engines:
        store = ("--redis-url", f"redis://127.0.0.1:{redis.port}", "--cluster", "double-term")
        with router_process(folder, fleet_document(engines.engines), *store) as router:
            yield router, engines


def test_a_second_order_cuts_streams_and_a_quick_one_does_not(tmp_path: Path, redis: RedisServer) -> None:
    with streaming(tmp_path, redis) as (router, engines):
        body = b'{"prompt": "go on", "max_tokens": 30000, "stream": true}'
        host, _, port = router.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: n\r\nContent-Type: application/json\r\n"
            client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
            for _ in range(3):
                router.process.send(signal.SIGTERM)
                time.sleep(0.2)
            time.sleep(0.6)
            assert router.process.alive, "one order: the stream goes on"
            router.process.send(signal.SIGTERM)
            told = b""
            while data := client.recv(65536):
                told += data
        assert router.process.ended() == 0, router.process.output
        assert b'"code":"standby"' in told.replace(b'": "', b'":"')
        engines.becomes_idle()


def test_sighup_reaches_the_router(site: Site) -> None:
    process = site.up()
    journal, old = site.folder / "journal.jsonl", site.folder / "old.jsonl"
    journal.rename(old)
    process.send(signal.SIGHUP)
    eventually(lambda: journal.exists() and journal.stat().st_size > 0, what="a new journal")


# --- exit statuses -----------------------------------------------------------------------------------


def test_what_the_router_refuses_is_the_wardens_status(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = site.start("--port", str(taken.getsockname()[1]))
        assert process.ended() == 2
    assert "Traceback" not in process.output


def test_a_state_file_of_a_live_router_is_refused_and_the_child_holds_it(site: Site) -> None:
    first = site.up()
    second = site.start("--router-id", "b")
    assert second.ended() == 2
    assert any("is in use by another live router" in line for line in second.lines)
    first.kill()  # the warden alone: the lock is the router's, until that has ended
    eventually(lambda: not psutil.pid_exists(router_pid(first)), what="the router's end")
    assert site.up("--router-id", "b").stop() == 0


def test_saved_state_of_another_schema_is_status_3(site: Site) -> None:
    (site.folder / "state.json").write_text('{"schema": "other", "schema_version": 9}')
    process = site.start("--resume")
    assert process.ended() == 3, process.output


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGTERM], ids=lambda n: n.name)
def test_the_end_of_the_router_is_the_end_of_the_warden(site: Site, number: signal.Signals) -> None:
    process = site.up()
    os.kill(router_pid(process), number)
    assert process.ended() == (0 if number is signal.SIGTERM else 1)


def test_a_router_that_just_exits_gives_its_status(site: Site) -> None:
    """`os._exit` in the middle of work, as a library might: nothing of Python's own end runs."""
    vanishing = Process(python("tests.support.vanishing_router", *site.options()))
    assert vanishing.ended() == 42, vanishing.output


def test_with_a_silent_store_the_warden_gives_up_after_t(tmp_path: Path) -> None:
    with ExitStack() as stack:
        process = Site(tmp_path, stack, NOWHERE).up("--lease-ttl", "5")
        began = time.monotonic()
        process.send(signal.SIGTERM)
        assert process.ended() == 0, process.output
    assert time.monotonic() - began < 10.0


# --- who runs it -------------------------------------------------------------------------------------


def test_the_service_manager_hears_the_warden(site: Site) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(30)
        manager.bind(str(site.folder / "notify"))
        manager.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        process = site.up(env={"NOTIFY_SOCKET": str(site.folder / "notify")})
        words = []
        for send in (lambda: None, lambda: process.send(signal.SIGTERM)):
            send()
            word, ancillary, _, _ = manager.recvmsg(64, socket.CMSG_SPACE(12))
            words.append((word, int.from_bytes(ancillary[0][2][:4], "little")))
        assert words == [(b"READY=1", process.pid), (b"STOPPING=1", process.pid)]
        assert process.ended() == 0


def test_no_warden_is_one_process(site: Site) -> None:
    process = site.up("--no-warden")
    assert router_pid(process) == process.pid
    assert psutil.Process(process.pid).children() == []
    assert process.stop() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace needs root")
def test_as_pid_1_it_reaps_orphans_and_hands_signals_on(site: Site) -> None:
    """As in a container without an init: `docker stop` is a SIGTERM to PID 1."""
    unshare = (program("unshare", package="util-linux"), "--pid", "--fork", "--mount-proc", "--kill-child")
    process = site.start(before=unshare)
    process.wait_for(lambda lines: any(LISTENS.search(line) for line in lines))
    (warden,) = psutil.Process(process.pid).children()
    (router,) = warden.children()
    assert router_pid(process) == 2, "its PID in there"
    orphan(warden.pid)
    eventually(lambda: warden.children() == [router], what="orphans reaped")
    warden.send_signal(signal.SIGTERM)
    assert process.ended() == 0, process.output
    assert not router.is_running()


def orphan(init: int) -> None:
    """A process in the namespace of `init` whose parent ends before it: it becomes a child of PID 1."""
    nsenter = [program("nsenter", package="util-linux"), "--target", str(init), "--pid", "--mount"]
    subprocess.run([*nsenter, "sh", "-c", "(sleep 0.5 & exec sleep 0.1) & sleep 0.3"], check=True, timeout=30)
    names = [child.name() for child in psutil.Process(init).children()]
    assert "sleep" in names, names
