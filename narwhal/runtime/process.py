"""One router process from its accepted start to its exit status (configuration.md section 3).

Everything that can refuse the start without the store does so before anything runs: the port, the state
file, saved state, profiles, the engines' credential. Signals are ours, not uvicorn's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import uvloop

from narwhal import __version__
from narwhal.clock import HAS_BOOTTIME, SystemClock
from narwhal.config.profiles import read_profiles
from narwhal.config.secret import secret
from narwhal.config.start import Start, with_address
from narwhal.errors import ConfigError, SavedStateError, StoreProtocolError
from narwhal.model.engine import EngineProfile
from narwhal.model.settings import ServeOptions, StoreAddress
from narwhal.runtime.exit_status import CLEAN, CRASHED, WRONG_STATE, WRONG_USE
from narwhal.runtime.limits import open_files_warning, raise_open_files
from narwhal.runtime.listener import HttpServer, bind
from narwhal.runtime.router import Router, Setting
from narwhal.runtime.warden.supervisor import ServiceManager, Supervisor
from narwhal.store.checkpoint import FileCheckpoint
from narwhal.telemetry import logs
from narwhal.telemetry.journal import Journal
from narwhal.telemetry.metrics import RouterMetrics
from narwhal.telemetry.provenance import provenance
from narwhal.telemetry.recorder import JournalRecorder

log = logging.getLogger("narwhal.runtime")
_summary = logging.getLogger("narwhal.start")

CUT_S = 1.0
"""Requests that are cut get this long to close their accounts."""

LINGER_S = 0.5
"""A load balancer learns of a change of owner at its next check. What it sends here until then gets an
answer (503, to be tried at the successor): a closed port or a reset would reach the client."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is held before the loop starts: given back at the end. `listeners`: the main one, and the control
    listener where there is one."""

    options: ServeOptions
    listeners: tuple[socket.socket, ...]
    checkpoint: FileCheckpoint
    journal: Journal
    run: str


def serve(start: Start, env: Mapping[str, str], *, supervisor: Supervisor | None = None) -> int:
    """Runs one router to its end: the exit status. Raises ConfigError or SavedStateError before it serves.

    `supervisor`: the warden that runs it; None: nobody but perhaps a service manager.
    """
    supervisor = supervisor or ServiceManager(env)
    logs.configure(start.options.log_level, start.options.log_format)
    for warning in (*start.warnings, *_host_warnings(start)):
        log.warning("%s", warning)
    profiles = _profiles(start)
    key = start.config.engine.engine_api_key_env
    api_key = secret(env, key, named_by="engine.engine_api_key_env") if key else ""
    with contextlib.ExitStack() as closing:
        prepared = _prepared(start, closing)
        metrics = RouterMetrics(lambda: prepared.journal.stats)
        clock = SystemClock()
        setting = Setting(
            options=prepared.options,
            config=start.config,
            profiles=profiles,
            api_key=api_key,
            run=prepared.run,
            checkpoint=prepared.checkpoint,
            recorder=JournalRecorder(prepared.journal, metrics, clock=clock),
            metrics=metrics,
            clock=clock,
            supervisor=supervisor,
        )
        supervisor.name(prepared.options.router_id, prepared.run)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(_life(setting, prepared))
        finally:
            supervisor.rest()


def status_of(error: BaseException) -> int:
    """The exit status that an error of the running process means."""
    match error:
        case ConfigError() | StoreProtocolError():
            return WRONG_USE
        case SavedStateError():
            return WRONG_STATE
        case _:
            return CRASHED


def _host_warnings(start: Start) -> list[str]:
    files = open_files_warning(raise_open_files(), start.config.serving.max_connections)
    clock = "" if HAS_BOOTTIME else "this system has no CLOCK_BOOTTIME: CLOCK_MONOTONIC stands in"
    return [sentence for sentence in (files, clock) if sentence]


def _profiles(start: Start) -> Mapping[str, EngineProfile]:
    reading = read_profiles(start.config.profiles.path, start.config.engines)
    for warning in reading.warnings:
        log.warning("%s", warning)
    return reading.profiles


def _prepared(start: Start, closing: contextlib.ExitStack) -> Prepared:
    """Ports first, then state file, then journal: the first that is refused is what the user reads."""
    listeners = _listeners(start.options, closing)
    ports = [listener.getsockname()[1] for listener in listeners]
    control_port = ports[1] if len(ports) > 1 else None
    options = with_address(start.options, socket.gethostname(), port=ports[0], control_port=control_port)
    checkpoint = FileCheckpoint(options.state_path)
    closing.callback(checkpoint.close)
    run = uuid.uuid4().hex
    meta = {**provenance(), "router_id": options.router_id, "cluster": options.cluster}
    journal = Journal(options.journal_path, run=run, meta=meta)
    journal.start()
    closing.callback(journal.close)
    return Prepared(options, listeners, checkpoint, journal, run)


def _listeners(options: ServeOptions, closing: contextlib.ExitStack) -> tuple[socket.socket, ...]:
    listeners = [bind(options.host, options.port)]
    closing.callback(listeners[0].close)
    if options.control_port is not None:
        listeners.append(bind(options.control_host, options.control_port, named_by="--control-host"))
        closing.callback(listeners[1].close)
    return tuple(listeners)


# --- on the loop -----------------------------------------------------------------------------------


class Signals:
    """SIGTERM and SIGINT: `stop`, a second one more than a second later `cut`. SIGHUP: files anew."""

    def __init__(self, journal: Journal) -> None:
        self.stop = asyncio.Event()
        self.cut = asyncio.Event()
        self._journal = journal
        self._log_file = logs.LogFile()
        self._loop = asyncio.get_running_loop()
        self._first_at = 0.0

    def install(self, orders: Iterable[signal.Signals]) -> None:
        """`orders`: the signals that mean the end."""
        for number in orders:
            self._loop.add_signal_handler(number, self._end)
        self._loop.add_signal_handler(signal.SIGHUP, self._reopen)

    def _end(self) -> None:
        now = self._loop.time()
        if not self.stop.is_set():
            self._first_at = now
            self.stop.set()
        elif now - self._first_at > 1.0:
            self.cut.set()

    def _reopen(self) -> None:
        self._journal.reopen()
        self._log_file.reopen()


async def _life(setting: Setting, prepared: Prepared) -> int:
    signals, supervisor = Signals(prepared.journal), setting.supervisor
    signals.install(supervisor.orders)
    supervisor.watch(asyncio.get_running_loop(), ended=signals.stop.set)
    router = Router(setting)
    apps = (router.app, router.control_app)
    servers = [HttpServer(app, listener) for app, listener in zip(apps, prepared.listeners, strict=False)]
    for server in servers:
        await server.start()
    _summary.setLevel(logging.INFO)
    _summary.info("%s", summary(setting))
    # What a start leaves (the little garbage in it too) is never looked at again.
    gc.freeze()
    gc.enable()
    supervisor.ready()
    work = asyncio.create_task(router.run(), name="router")
    stopped = asyncio.create_task(signals.stop.wait(), name="stop")
    await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    supervisor.stopping()
    await _end(router, servers, signals=signals, work=work, graceful_s=prepared.options.graceful_timeout_s)
    return _ended(work)


def _ended(work: asyncio.Task[None]) -> int:
    """The exit status; what the router failed with is told, with its traceback if it is a bug."""
    error = None if work.cancelled() else work.exception()
    if error is None:
        return CLEAN
    status = status_of(error)
    log.critical("the router ends: %s", error, exc_info=error if status == CRASHED else None)
    return status


async def _end(
    router: Router,
    servers: Iterable[HttpServer],
    *,
    signals: Signals,
    work: asyncio.Task[None],
    graceful_s: float,
) -> None:
    """Gives the fleet away first, then lets streams run out, then goes (cluster.md section 5)."""
    if not work.done():
        gate = router.control.gate
        handed_over = gate.may_admit(SystemClock().now()) and gate.holder != ""
        await router.control.shut_down()
        for server in servers:
            server.leave()
        if handed_over:
            await _linger(signals.cut)
        left = await router.drain(signals.cut, within_s=graceful_s)
        if left:
            log.warning("%d requests are cut after serving.graceful_timeout_s", left)
    for server in servers:
        await server.stop()
    if not work.done():
        # What was cut still counts: its outcome goes with the last flush.
        await router.drain(asyncio.Event(), within_s=CUT_S)
        await router.control.finish()
        work.cancel()
        await asyncio.wait({work})
    await router.aclose()


async def _linger(cut: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            await cut.wait()


def summary(setting: Setting) -> str:
    """The one line at start: version, address, cluster, role, engines, store."""
    options = setting.options
    control = ""
    if options.control_port is not None:
        control = f", control on {_address(options.control_host, options.control_port)}"
    return (
        f"narwhal {__version__} listens on {_address(options.host, options.port)} as {options.router_id} "
        f"(pid {os.getpid()}): cluster {options.cluster}, role {_first_role(options)}, "
        f"{len(setting.config.engines)} engines, store {_store_words(options.store)}{control}"
    )


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _first_role(options: ServeOptions) -> str:
    return "active" if options.store is None else "standby"


def _store_words(store: StoreAddress | None) -> str:
    """Without user and password."""
    if store is None:
        return "none (local control)"
    if store.socket_path:
        return f"unix:{store.socket_path}"
    hosts = ",".join(f"{host}:{port}" for host, port in store.hosts)
    return f"{'rediss' if store.tls else 'redis'}://{hosts}" + (f"/{store.service}" if store.service else "")
