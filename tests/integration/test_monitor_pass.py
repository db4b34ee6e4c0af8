"""Passes on a running loop: what one stage does never keeps the others from running."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from narwhal.clock import SystemClock
from narwhal.cluster.local import LocalGate
from narwhal.errors import (
    EngineUnreachable,
    InvariantViolation,
    StoreError,
    StoreProtocolError,
    StoreUnreachable,
)
from narwhal.model.decoding import DecodeSeen
from narwhal.model.lease import Published, PublishReply
from narwhal.model.monitoring import StageReport
from narwhal.monitor.gate import MonitoredGate
from narwhal.monitor.handoff import HandoffStage
from narwhal.monitor.lag import LoopLag
from narwhal.monitor.loop import MonitorLoop, PassRecord
from narwhal.monitor.model_card import ModelCard, longest_context
from narwhal.monitor.rollover import RolloverStage
from narwhal.monitor.stage import Stage, run_stage, stage_deadline_s
from narwhal.policy.monitoring import Monitoring
from narwhal.policy.wave import Wave
from narwhal.ports import EngineReply
from narwhal.telemetry.metrics import RouterMetrics
from narwhal.telemetry.recorder import MemoryRecorder
from tests.support.own_router import Own

CLOCK = SystemClock()
LIVENESS_S = 10.0
"""Nothing below takes this long unless it hangs."""

Act = Callable[[], Awaitable[None]]
T = TypeVar("T")


async def nothing() -> None:
    return None


async def forever() -> None:
    await asyncio.Event().wait()


def raising(error: BaseException) -> Act:
    async def act() -> None:
        raise error

    return act


@dataclass(slots=True)
class Acting:
    """A stage that does what the test gives it."""

    name: str
    act: Act = nothing
    needs_control: bool = False
    runs: int = 0
    closed: bool = False

    async def run(self, now: float) -> None:
        self.runs += 1
        await self.act()

    async def aclose(self) -> None:
        self.closed = True


def monitored(
    *stages: Stage, limit: int = 2, gate: LocalGate | None = None
) -> tuple[MonitorLoop, Monitoring, MemoryRecorder]:
    recorder = MemoryRecorder()
    monitoring = Monitoring(limit=limit, stages=[stage.name for stage in stages])
    record = PassRecord(monitoring, recorder, RouterMetrics())
    loop = MonitorLoop(stages, record, gate=gate or LocalGate(), clock=CLOCK, interval_s=0.001)
    return loop, monitoring, recorder


def without_control() -> LocalGate:
    gate = LocalGate()
    gate.shutting_down = True
    return gate


def run(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(LIVENESS_S):
            return await work

    return asyncio.run(bounded())


# --- the boundary ----------------------------------------------------------------------------------


def report_of(act: Act, *, deadline_s: float = LIVENESS_S) -> StageReport:
    return run(run_stage(Acting("handoff", act), clock=CLOCK, deadline_s=deadline_s))


def test_a_clean_stage_reports_no_failure() -> None:
    assert report_of(nothing).failure == ""


def test_a_raising_stage_is_reported_under_its_exception_class_with_the_traceback() -> None:
    report = report_of(raising(KeyError("gauge")))
    assert report.failure == "KeyError"
    assert "gauge" in report.detail


def test_a_stage_past_its_deadline_is_ended_and_reported() -> None:
    assert report_of(forever, deadline_s=0.01).failure == "TimeoutError"


def test_a_stage_that_holds_the_loop_past_its_deadline_is_reported_too() -> None:
    async def busy() -> None:
        until = CLOCK.now() + 0.02
        while CLOCK.now() < until:
            pass

    assert report_of(busy, deadline_s=0.01).failure == "TimeoutError"


def test_a_cancelled_part_of_a_stage_is_its_failure_and_not_the_end_of_the_pass() -> None:
    async def awaits_cancelled() -> None:
        task = asyncio.ensure_future(forever())
        task.cancel()
        await task

    assert report_of(awaits_cancelled).failure == "CancelledError"


def test_a_bug_in_a_machine_is_not_survived() -> None:
    with pytest.raises(InvariantViolation):
        report_of(raising(InvariantViolation("counts differ")))


def test_the_deadline_is_never_unbounded() -> None:
    assert stage_deadline_s(0.2) == 5.0
    assert stage_deadline_s(3.0) == 15.0


# --- the pass --------------------------------------------------------------------------------------


def test_the_stages_behind_a_failed_one_still_run() -> None:
    first, second = Acting("telemetry", raising(OSError("disk"))), Acting("handoff")
    loop, monitoring, _ = monitored(first, second)
    run(loop.run_pass())
    assert second.runs == 1
    view = monitoring.view()
    assert (view.stages["telemetry"].last_class, view.stages["handoff"].failures) == ("OSError", 0)
    assert view.consecutive == 1


def test_the_loop_serves_others_between_two_stages() -> None:
    order: list[str] = []

    def acting(name: str) -> Acting:
        async def act() -> None:
            order.append(name)

        return Acting(name, act)

    async def beside() -> None:
        while len(order) < 100:
            order.append("other")
            await asyncio.sleep(0)

    async def scenario() -> None:
        loop, _, _ = monitored(acting("liveness"), acting("telemetry"), acting("handoff"))
        await asyncio.gather(beside(), loop.run_pass())

    run(scenario())
    stages = [index for index, name in enumerate(order) if name != "other"]
    assert all("other" in order[one:next_one] for one, next_one in pairwise(stages)), order


def test_failing_passes_degrade_close_admission_and_the_first_clean_one_opens_it() -> None:
    stage = Acting("handoff", raising(OSError("disk")))
    loop, monitoring, recorder = monitored(stage, limit=2)
    gate = MonitoredGate(LocalGate(), monitoring, wave=Wave())
    run(loop.run_pass())
    assert gate.may_admit(0.0)
    run(loop.run_pass())
    assert not gate.may_admit(0.0)
    assert gate.refusal(0.0) == "monitoring degraded: handoff OSError"
    stage.act = nothing
    run(loop.run_pass())
    assert gate.may_admit(0.0)
    assert gate.refusal(0.0) == ""
    assert [kind for kind, _ in recorder.events] == [
        "monitoring_stage_failure",
        "monitoring_stage_failure",
        "monitoring_degraded",
        "monitoring_recovered",
    ]


def test_control_that_is_over_outranks_degraded_monitoring_in_a_refusal() -> None:
    monitoring = Monitoring(limit=1, stages=["handoff"])
    monitoring.stage_ended(StageReport("handoff", 1.0, 0.0, failure="OSError"))
    monitoring.pass_ended()
    assert MonitoredGate(without_control(), monitoring, wave=Wave()).refusal(0.0) == "shutting down"


def test_a_router_without_control_runs_only_what_needs_none() -> None:
    telemetry, handoff = Acting("telemetry"), Acting("handoff", needs_control=True)
    gate = without_control()
    loop, _, _ = monitored(telemetry, handoff, gate=gate)
    run(loop.run_pass())
    assert (telemetry.runs, handoff.runs) == (1, 0)
    gate.shutting_down = False
    run(loop.run_pass())
    assert (telemetry.runs, handoff.runs) == (2, 1)


def test_control_lost_in_the_middle_of_a_pass_stops_the_stages_that_need_it() -> None:
    gate = LocalGate()

    async def lose() -> None:
        gate.shutting_down = True

    handoff = Acting("handoff", needs_control=True)
    loop, _, _ = monitored(Acting("telemetry", lose), handoff, gate=gate)
    run(loop.run_pass())
    assert handoff.runs == 0


def test_a_pass_that_is_cancelled_counts_for_nothing_and_closes_its_stages() -> None:
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await forever()

    stages = (Acting("telemetry"), Acting("handoff", hang))
    loop, monitoring, _ = monitored(*stages)

    async def cancel_in_the_middle() -> None:
        task = asyncio.create_task(loop.run())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(cancel_in_the_middle())
    assert (monitoring.view().failures, monitoring.view().consecutive) == (0, 0)
    assert all(stage.closed for stage in stages)


def test_the_loop_goes_on_after_failing_passes() -> None:
    enough = asyncio.Event()
    stage = Acting("telemetry", raising(KeyError("x")))

    async def fail_often() -> None:
        if stage.runs >= 5:
            enough.set()
        raise KeyError("x")

    stage.act = fail_often
    loop, monitoring, _ = monitored(stage)

    async def until_enough() -> None:
        task = asyncio.create_task(loop.run())
        await enough.wait()
        task.cancel()
        await asyncio.wait({task})

    run(until_enough())
    assert monitoring.degraded
    assert monitoring.view().failures >= 4


def test_stages_out_of_their_fixed_order_are_a_bug() -> None:
    with pytest.raises(InvariantViolation, match="order"):
        monitored(Acting("handoff"), Acting("telemetry"))


# --- rollover --------------------------------------------------------------------------------------


class Watching:
    """Streams that are looked at in so many pieces."""

    def __init__(self, pieces: int = 1) -> None:
        self.pieces = pieces
        self.taken = 0

    def look(self) -> Iterator[None]:
        for _ in range(self.pieces):
            yield

    def take(self) -> Sequence[DecodeSeen]:
        self.taken += 1
        return (DecodeSeen("d0", 0.02, 1.0, 100.0),)


def test_streams_are_looked_at_in_pieces_and_others_run_between() -> None:
    async def scenario() -> int:
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(turn)

        turn()
        await RolloverStage(Watching(pieces=20), Own().fleet.pacing, interval_s=1.0).run(100.0)
        return turns

    assert run(scenario()) >= 20


def test_a_pass_that_comes_late_ends_no_interval_and_the_next_one_does() -> None:
    """Our own lag is no evidence: what the engines sent meanwhile may still be unread."""
    watch, own = Watching(), Own()
    stage = RolloverStage(watch, own.fleet.pacing, interval_s=1.0)

    async def passes() -> list[int]:
        taken = []
        for now in (100.0, 101.0, 102.4, 104.0, 104.1, 105.0):
            await stage.run(now)
            taken.append(watch.taken)
        return taken

    assert run(passes()) == [1, 2, 3, 3, 4, 5]


def test_short_intervals_are_late_by_a_quarter_of_a_second() -> None:
    watch = Watching()
    stage = RolloverStage(watch, Own().fleet.pacing, interval_s=0.1)

    async def passes() -> None:
        for now in (100.0, 100.3, 100.7):
            await stage.run(now)

    run(passes())
    assert watch.taken == 2


# --- handoff ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Publishing:
    """A publisher whose two writes do what the test gives them."""

    publish: Act = nothing
    write: Act = nothing
    published: int = 0
    written: int = 0

    async def snapshot(self) -> PublishReply | None:
        await self.publish()
        self.published += 1
        return Published("1-2")

    async def checkpoint(self) -> None:
        await self.write()
        self.written += 1


async def handoff_passes(publisher: Publishing, passes: int) -> tuple[list[str], HandoffStage]:
    """Failures of so many turns, with the loop given time to end what can end between them."""
    stage = HandoffStage(publisher)
    failures = []
    for _ in range(passes):
        failures.append((await run_stage(stage, clock=CLOCK, deadline_s=0.05)).failure)
        for _ in range(5):
            await asyncio.sleep(0)
    await stage.aclose()
    return failures, stage


def test_both_writes_happen_in_every_pass() -> None:
    publisher = Publishing()
    failures, _ = run(handoff_passes(publisher, 3))
    assert failures == ["", "", ""]
    assert (publisher.published, publisher.written) == (3, 3)


def test_a_store_without_an_answer_is_counted_and_no_stage_failure() -> None:
    publisher = Publishing(publish=raising(StoreUnreachable("refused")))
    failures, stage = run(handoff_passes(publisher, 3))
    assert failures == ["", "", ""]
    assert stage.unpublished == 2
    assert publisher.written == 3


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (StoreUnreachable("no answer within 0.8 s"), 0),
        (StoreUnreachable("OOM command not allowed", kind="OOM"), 1),
        (StoreProtocolError("NOPERM"), 1),
    ],
    ids=["silence", "a full store", "a right that is missing"],
)
def test_what_the_store_answers_is_logged_once_and_its_silence_by_the_lease_keeper(
    error: StoreError, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    run(handoff_passes(Publishing(publish=raising(error)), 4))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * lines


def test_a_store_that_hangs_keeps_neither_the_pass_nor_the_checkpoint() -> None:
    publisher = Publishing(publish=forever)
    failures, _ = run(handoff_passes(publisher, 3))
    assert failures == ["", "", ""]
    assert publisher.written == 3


def test_a_checkpoint_that_cannot_be_written_is_a_stage_failure_and_the_store_is_still_told() -> None:
    publisher = Publishing(write=raising(OSError("no space left")))
    failures, _ = run(handoff_passes(publisher, 2))
    assert failures == ["OSError", "OSError"]
    assert publisher.published == 2


def test_a_checkpoint_that_hangs_is_a_stage_failure_and_is_not_begun_twice() -> None:
    begun = 0

    async def hang() -> None:
        nonlocal begun
        begun += 1
        await forever()

    failures, _ = run(handoff_passes(Publishing(write=hang), 2))
    assert failures == ["TimeoutError", "TimeoutError"]
    assert begun == 1


def test_the_end_waits_for_a_checkpoint_that_is_being_written() -> None:
    async def scenario() -> int:
        may_end = asyncio.Event()

        async def slow() -> None:
            await may_end.wait()

        publisher = Publishing(write=slow)
        stage = HandoffStage(publisher)
        turn = asyncio.create_task(stage.run(0.0))
        await asyncio.sleep(0)
        turn.cancel()
        closing = asyncio.create_task(stage.aclose())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not closing.done()
        may_end.set()
        await closing
        return publisher.written

    assert run(scenario()) == 1


def test_a_bug_in_the_snapshot_is_a_stage_failure_of_the_pass_that_takes_it_in() -> None:
    publisher = Publishing(publish=raising(KeyError("role")))
    failures, _ = run(handoff_passes(publisher, 2))
    assert failures == ["", "KeyError"]
    assert publisher.written == 2


# --- the model card --------------------------------------------------------------------------------


@dataclass(slots=True)
class Telling:
    """Engines that answer `GET /v1/models` with a context length, or not at all (None)."""

    lengths: dict[str, int | None]
    asked: list[str] = field(default_factory=list)

    async def get(self, iid: str, path: str, *, timeout_s: float) -> EngineReply:
        assert path == "/v1/models"
        self.asked.append(iid)
        length = self.lengths[iid]
        if length is None:
            raise EngineUnreachable("refused", iid=iid)
        body = b'{"data":[{"id":"tiny","max_model_len":%d}]}' % length
        return EngineReply(200, {}, body)

    async def aclose(self) -> None:
        return None


async def refreshed(telling: Telling, passes: int) -> ModelCard:
    card = ModelCard("tiny", control=telling, engines=lambda: list(telling.lengths), timeout_s=1.0)
    for _ in range(passes):
        card.refresh()
        for _ in range(5):
            await asyncio.sleep(0)
    await card.aclose()
    return card


def test_the_context_length_is_unknown_until_an_engine_tells_it() -> None:
    assert run(refreshed(Telling({"e0": None}), 2)).max_model_len is None


def test_an_engine_that_tells_is_asked_again_and_a_dead_one_hides_nothing() -> None:
    telling = Telling({"e0": None, "e1": 4096})
    card = run(refreshed(telling, 4))
    assert telling.asked == ["e0", "e1", "e1", "e1"]
    assert card.max_model_len == 4096


def test_a_fleet_without_engines_worth_asking_asks_nobody() -> None:
    assert run(refreshed(Telling({}), 2)).max_model_len is None


@pytest.mark.parametrize(
    ("body", "length"),
    [
        (b'{"data":[{"id":"other","max_model_len":9},{"id":"tiny","max_model_len":4096}]}', 4096),
        (b'{"data":[{"id":"other","max_model_len":9}]}', None),
        (b'{"data":[{"id":"tiny"}]}', None),
        (b'{"data":[{"id":"tiny","max_model_len":true}]}', None),
        (b'{"data":[{"id":"tiny","max_model_len":"4096"}]}', None),
        (b'{"data":[{"max_model_len":4096}]}', None),
        (b'{"data":[null]}', None),
        (b'{"data":null}', None),
        (b"[]", None),
        (b"<html>", None),
    ],
)
def test_only_the_served_models_own_length_is_taken(body: bytes, length: int | None) -> None:
    assert longest_context(body, "tiny") == length


# --- loop lag --------------------------------------------------------------------------------------


def test_a_held_loop_shows_as_lag() -> None:
    async def held() -> float:
        lag = LoopLag(lambda: True)
        lag.start()
        until = CLOCK.now() + 0.25
        while CLOCK.now() < until:
            pass
        worst_s = lag.take()
        lag.stop()
        return worst_s

    assert run(held()) >= 0.1


def hold(seconds: float) -> None:
    until = CLOCK.now() + seconds
    while CLOCK.now() < until:
        pass


def test_a_standstill_is_remembered_with_its_length() -> None:
    async def held() -> tuple[float, ...]:
        lag = LoopLag(lambda: True)
        before_s = lag.stood_still_s(10.0)
        lag.start()
        hold(0.4)
        under_way_s = lag.stood_still_s(10.0)
        await asyncio.sleep(0.15)
        told_s = lag.stood_still_s(10.0)
        lag.stop()
        return before_s, under_way_s, told_s, lag.stood_still_s(0.05)

    before_s, under_way_s, told_s, lately_s = run(held())
    assert before_s == 0.0, "nobody has measured"
    assert under_way_s >= 0.25
    assert told_s >= 0.25
    assert lately_s <= 0.05, "of the time asked for"
