"""The request path over real sockets in the test's own loop: our HTTP protocol, handler, engine client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from narwhal.api.inbound import BodyLimits
from narwhal.api.inference import DataFirst, DataViews, data_routes
from narwhal.api.protocol import RouterProtocol
from narwhal.clock import SystemClock
from narwhal.cluster.local import LocalGate
from narwhal.engine.client import ClientSettings, LeanClient
from narwhal.engine.dialect import make_dialect
from narwhal.model.engine import EngineProfile, EngineSpec, Role
from narwhal.model.request import RequestRow
from narwhal.model.settings import FleetConfig
from narwhal.monitor.judge import Judge
from narwhal.policy.admission import Admission
from narwhal.policy.fleet import Fleet
from narwhal.policy.retry import RetryPolicy
from narwhal.policy.totals import Totals
from narwhal.ports import ControlGate
from narwhal.serving.attempt import Attempt
from narwhal.serving.control import ControlCheck
from narwhal.serving.doors import Doors
from narwhal.serving.handler import Handler
from narwhal.serving.ledger import Ledger
from narwhal.serving.leg import EngineAccess
from narwhal.serving.retries import Retries
from narwhal.serving.seats import Seats
from narwhal.serving.sizing import Sizer
from narwhal.serving.waiting_room import WaitingRoom
from narwhal.serving.witness import Witness
from narwhal.telemetry.metrics import RouterMetrics
from narwhal.telemetry.recorder import MemoryRecorder
from tests.support.evidence import Heard


@dataclass
class Card:
    model: str
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Rig:
    """Everything of one serving router that a test looks at."""

    url: str
    fleet: Fleet
    ledger: Ledger
    totals: Totals
    recorder: MemoryRecorder
    card: Card
    client: LeanClient
    room: WaitingRoom
    heard: Heard
    retries: Retries
    http: httpx.AsyncClient
    seats: Seats

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def waiting(self, leg: str) -> int:
        """Legs in line for a seat."""
        return len(getattr(self.seats, leg).waiting)

    @property
    def last(self) -> RequestRow:
        return self.recorder.rows[-1][0]


def specs(stands: Sequence[Any], *, roles: str) -> tuple[EngineSpec, ...]:
    """One letter an engine: p or d, upper case for pinned."""
    names = {"p": "prefill", "d": "decode"}
    return tuple(
        EngineSpec(
            stand.engine.settings.name, stand.url, role=Role(names[letter.lower()]), pin=letter.isupper()
        )
        for stand, letter in zip(stands, roles, strict=True)
    )


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """What a test may set beside the fleet file. Without a gate the router is in control; `stamp` is what
    its legs carry as their epoch, None for nothing. `draw` scales the pauses before retries,
    `stood_still_s` is what the loop is said to have missed. `judged`: evidence goes to the fleet; nobody
    probes."""

    gate: ControlGate | None = None
    profiles: Mapping[str, EngineProfile] = field(default_factory=dict)
    draw: Callable[[], float] = lambda: 0.0
    stood_still_s: Callable[[float], float] = lambda within_s: 0.0
    judged: bool = False
    body_idle_s: float = 30.0
    stamp: str | None = None


@asynccontextmanager
async def router(config: FleetConfig, options: RouterOptions) -> AsyncIterator[Rig]:
    clock = SystemClock()
    fleet = Fleet(config, options.profiles)
    totals, recorder = Totals("run-test"), MemoryRecorder()
    client = LeanClient(
        config.engines,
        ClientSettings(config.serving.max_connections, config.serving.max_response_bytes),
        stamp=lambda: options.stamp,
    )
    client.allow_for(options.stood_still_s)
    access = EngineAccess(
        client, make_dialect(config.engine.dialect, config.engine.connector), clock, config.engine
    )
    ledger = Ledger(fleet=fleet, totals=totals, recorder=recorder, clock=clock)
    gate = options.gate or LocalGate()
    judge = Judge(fleet, gate=gate, recorder=recorder, metrics=RouterMetrics(), clock=clock)
    heard = Heard(judge if options.judged else None)
    control = ControlCheck(gate, clock)
    witness = Witness(heard)
    doors = Doors(Admission(config.serving), control=control, fleet=fleet, clock=clock)
    retries = Retries(RetryPolicy(config.serving), clock=clock, draw=options.draw)
    attempt = Attempt(access, config.serving, fleet=fleet, control=control, witness=witness)
    ledger.freed = attempt.freed
    handler = Handler(
        ledger,
        doors=doors,
        sizer=Sizer(access, fleet, witness=witness),
        attempt=attempt,
        retries=retries,
    )
    card = Card(config.model)
    views = DataViews(
        handler,
        BodyLimits(config.model, config.serving.max_request_bytes, idle_s=options.body_idle_s),
        lambda: (clock.now(), clock.wall()),
        card,
        created=1_800_000_000,
    )
    async with (
        _served(DataFirst(views, Starlette(routes=data_routes(views)))) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        yield Rig(
            url,
            fleet,
            ledger,
            totals,
            recorder,
            card,
            client,
            doors.room,
            heard,
            retries,
            http,
            attempt.seats,
        )
        await http.aclose()
    await client.aclose()


class _Server(uvicorn.Server):
    """Says when it listens. Signals stay the test runner's."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


@asynccontextmanager
async def _served(app: ASGIApp) -> AsyncIterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app,
            http=RouterProtocol,
            ws="none",
            lifespan="off",
            proxy_headers=False,
            access_log=False,
            log_level="warning",
        )
        server = _Server(config)
        task = asyncio.create_task(server.serve([listener]))
        await server.up.wait()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task
