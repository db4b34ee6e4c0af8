"""serving/attempt.py: how old a KV handoff is when its decode may leave, counted from where."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from narwhal.cluster.local import LocalGate
from narwhal.engine.dialect import make_dialect
from narwhal.errors import EngineUnreachable, HandoffExpired, NarwhalError
from narwhal.model.engine import Leg
from narwhal.model.evidence import Evidence, FailureClass, LegFailed, LivenessSwept, ProbeOutcome
from narwhal.model.placement import Demand
from narwhal.model.request import Deadline
from narwhal.monitor.probe_legs import own_request
from narwhal.policy.fleet import Fleet
from narwhal.policy.totals import Totals
from narwhal.ports import EngineCall, EngineReply, StreamCall, StreamSink
from narwhal.serving.attempt import Attempt
from narwhal.serving.control import ControlCheck
from narwhal.serving.job import Job
from narwhal.serving.ledger import Ledger
from narwhal.serving.leg import EngineAccess
from narwhal.serving.witness import Witness
from narwhal.telemetry.recorder import MemoryRecorder
from tests.support.clients import KeptStream
from tests.support.evidence import Heard
from tests.support.own_router import ENGINES
from tests.support.processes import LIVENESS_S
from tests.support.settings import engine_settings, fleet_config, serving_settings
from tests.support.ticking import TickingClock

SENT_S = 1000.0
CAME_S = 1010.0
"""Nothing of the prefill's answer had come by then."""
KV = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [1, 2, 3],
    "remote_engine_id": "engine-0",
    "remote_request_id": "r-0",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}
ANSWER = {"choices": [{"index": 0, "text": "x", "finish_reason": "length"}], "kv_transfer_params": KV}


class Engines:
    """`ports.EngineClient`: the answer of a prefill is read `read_s` after it may have come, the decode may
    leave `waited_s` after that. `sent`: decodes that left; each is lost then. `meanwhile` is called while the
    prefill is under way."""

    def __init__(self, clock: TickingClock, *, read_s: float, waited_s: float = 0.0) -> None:
        self.sent = 0
        self._clock = clock
        self._read_s, self._waited_s = read_s, waited_s
        self.meanwhile: Callable[[], object] = lambda: None

    async def fetch(self, call: EngineCall) -> EngineReply:
        assert call.permit is not None
        call.permit()
        self.meanwhile()
        self._clock.now_s = CAME_S + self._read_s
        return EngineReply(200, {}, json.dumps(ANSWER).encode(), not_before=CAME_S)

    async def stream(self, call: StreamCall, sink: StreamSink) -> None:
        self._clock.now_s += self._waited_s
        if call.call.permit is not None:
            call.call.permit()
        self.sent += 1
        raise EngineUnreachable("lost", iid=call.call.iid)

    async def aclose(self) -> None:
        """Nothing is held."""


class Rig:
    """One request over prefill and decode engines, with the defaults of a fleet file but for `changes`."""

    def __init__(self, *, read_s: float, waited_s: float = 0.0, **changes: Any) -> None:
        self.clock = TickingClock(SENT_S)
        self.engines = Engines(self.clock, read_s=read_s, waited_s=waited_s)
        serving = serving_settings(**changes)
        self.fleet = Fleet(fleet_config(*ENGINES, serving=serving), {})
        self.heard, gate = Heard(), LocalGate()
        access = EngineAccess(self.engines, make_dialect("vllm", "nixl"), self.clock, engine_settings())
        self.ledger = Ledger(
            fleet=self.fleet, totals=Totals("run-1"), recorder=MemoryRecorder(), clock=self.clock
        )
        self.attempt = Attempt(
            access,
            serving,
            fleet=self.fleet,
            control=ControlCheck(gate, self.clock),
            witness=Witness(self.heard),
        )

    async def run(self) -> NarwhalError:
        """What it ended with."""
        with self.ledger.open(Asked(), 1) as entry:  # type: ignore[arg-type]
            job = Job(entry, own_request("tiny", tokens=4), KeptStream(), Deadline(inf), Demand(160, 164))
            with pytest.raises((EngineUnreachable, HandoffExpired)) as raised:
                await self.attempt.run(job, frozenset())
            self.failures = entry.row.attempt_failures
        error = raised.value
        assert isinstance(error, NarwhalError)
        return error

    def held(self, now: float) -> tuple[int, int]:
        """Handoffs that producers hold, and those that nobody came for."""
        told = self.fleet.kv(now).values()
        return sum(one.handoffs for one in told), sum(one.orphaned for one in told)


class Asked:
    """`ports.Inbound` as far as an entry reads it."""

    rid, client_rid, arrived_wall = "r-1", None, 1_800_000_000.0

    def __init__(self) -> None:
        self.stream = KeptStream()


@pytest.mark.parametrize(
    ("read_s", "waited_s", "leaves"),
    [
        (0.0, 0.0, True),
        (0.0, 25.0, True),
        (0.0, 25.1, False),
        (24.9, 0.0, True),
        (25.1, 0.0, False),
        (12.0, 12.9, True),
        (12.0, 13.1, False),
        (29.0, 0.0, False),
        (31.0, 0.0, False),
        (3600.0, 0.0, False),
    ],
)
def test_no_decode_leaves_25_seconds_after_its_prefill_may_have_completed(
    read_s: float, waited_s: float, leaves: bool
) -> None:
    """However the time is shared by the answer that lay unread and the decode that waited to leave."""
    rig = Rig(read_s=read_s, waited_s=waited_s)
    error = asyncio.run(rig.run())
    assert (rig.engines.sent, isinstance(error, HandoffExpired)) == ((1, False) if leaves else (0, True))


@pytest.mark.parametrize(
    ("bound_s", "read_s", "leaves"), [(50.0, 49.9, True), (50.0, 50.1, False), (4.0, 4.1, False)]
)
def test_a_bound_of_the_fleet_file_counts_from_the_same_moment(
    bound_s: float, read_s: float, leaves: bool
) -> None:
    rig = Rig(read_s=read_s, handoff_timeout_s=bound_s)
    asyncio.run(rig.run())
    assert rig.engines.sent == leaves


MISSED = LivenessSwept("p0", ProbeOutcome.BAD, "no answer")
LOST = LegFailed("p0", Leg.PREFILL, FailureClass.CONNECTION, "connection:connect", "refused")


@pytest.mark.parametrize(
    ("evidence", "at_s", "leaves"),
    [
        (MISSED, SENT_S, False),
        (MISSED, CAME_S, False),
        (MISSED, SENT_S - 0.1, True),
        (LOST, CAME_S, False),
        (replace(MISSED, outcome=ProbeOutcome.GOOD), CAME_S, True),
        (replace(MISSED, iid="p1"), CAME_S, True),
    ],
)
def test_it_counts_from_the_sending_where_its_producer_gave_no_answer_since(
    evidence: Evidence, at_s: float, leaves: bool
) -> None:
    """Ten seconds passed until nothing had come yet, sixteen until the decode."""
    rig = Rig(read_s=16.0)
    rig.engines.meanwhile = lambda: rig.fleet.step(evidence, at_s)
    asyncio.run(rig.run())
    assert rig.engines.sent == leaves
    assert rig.held(SENT_S + 30.0) == ((1, 0) if leaves else (0, 1))


def test_a_handoff_that_is_too_old_is_nobodys_fault() -> None:
    rig = Rig(read_s=26.0)
    asyncio.run(rig.run())
    assert rig.heard.of(LegFailed) == []
    assert [(one["leg"], one["class"], one["kind"]) for one in rig.failures] == [
        ("decode", "none", "HandoffExpired")
    ]


def test_its_lease_ends_by_the_same_moment() -> None:
    rig = Rig(read_s=26.0)
    asyncio.run(rig.run())
    assert rig.held(CAME_S + 29.9) == (1, 0)
    assert rig.held(CAME_S + 30.0) == (0, 1)


def test_it_travels_with_what_is_left_of_that_lease() -> None:
    rig = Rig(read_s=26.0)
    asyncio.run(rig.run())
    (rows,) = rig.fleet.accounts.export_kv(CAME_S + 26.0).values()
    assert isinstance(rows, list)
    assert [row["remaining_s"] for row in rows] == [4.0]


def test_a_lease_that_is_over_when_the_answer_is_read_is_told_to_nobody() -> None:
    rig = Rig(read_s=31.0)
    asyncio.run(rig.run())
    assert rig.fleet.accounts.export_kv(CAME_S + 31.0) == {}
    assert rig.held(CAME_S + 31.0) == (0, 1)
    rig.fleet.accounts.check_invariants()


def test_a_decode_that_waits_for_a_seat_waits_no_longer() -> None:
    async def waits() -> None:
        rig = Rig(read_s=10.0, decode_concurrency=1)
        for _ in range(2):
            rig.fleet.reserve_decode(Demand(1), SENT_S, producer="p0", avoid=())
        asked = asyncio.ensure_future(rig.run())
        for _ in range(9):
            await asyncio.sleep(0)
        (wish,) = rig.attempt.seats.decode.waiting
        assert wish.until == CAME_S + 25.0
        rig.clock.now_s = CAME_S + 25.1
        async with asyncio.timeout(LIVENESS_S):
            assert isinstance(await asked, HandoffExpired)

    asyncio.run(waits())
