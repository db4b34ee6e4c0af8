"""What documents say of the totals never goes back, in whatever order flushes are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from narwhal.cluster.flush import TotalsFlusher
from narwhal.model.request import Counters, Outcome
from narwhal.policy.totals import Totals
from narwhal.store.handoff import ScriptHandoffStore
from narwhal.store.memory import MemoryRunner
from tests.unit.cluster.cluster_rig import Scene, play


class LateAnswers(ScriptHandoffStore):
    """Flushes happen at once and are answered later: the first after 0.2 s, each later one 0.1 s sooner."""

    __slots__ = ("sent",)

    async def flush_totals(self, runs: Mapping[str, Counters], *, timeout_s: float) -> Mapping[str, Counters]:
        self.sent = getattr(self, "sent", 0) + 1
        delay = 0.3 - 0.1 * self.sent
        answer = await super().flush_totals(runs, timeout_s=timeout_s)
        await asyncio.sleep(delay)
        return answer


def test_a_late_answer_of_an_earlier_flush_lowers_nothing() -> None:
    async def script(scene: Scene) -> None:
        totals = Totals("r")
        flusher = TotalsFlusher(LateAnswers(MemoryRunner(scene.server), "c"), totals, clock=scene.clock)
        totals.finished(Outcome.SERVED)
        first = asyncio.create_task(flusher.flush())
        await asyncio.sleep(0.01)
        totals.finished(Outcome.SERVED)
        await flusher.flush()
        assert flusher.confirmed.served == 2
        await first
        assert flusher.confirmed.served == 2

    play(script)
