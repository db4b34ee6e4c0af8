"""Stage `telemetry`: gauges, floor state, loop lag, the model card. The one stage a standby runs too."""

from __future__ import annotations

from collections.abc import Callable

from narwhal.model.monitoring import GaugeSample
from narwhal.monitor.lag import LoopLag
from narwhal.monitor.model_card import ModelCard
from narwhal.ports import Metrics


class TelemetryStage:
    """`sample` reads memory: (now, longest loop lag in seconds) -> the gauges of this instant."""

    name = "telemetry"
    needs_control = False

    def __init__(
        self,
        sample: Callable[[float, float], GaugeSample],
        *,
        metrics: Metrics,
        card: ModelCard,
        lag: LoopLag,
    ) -> None:
        self._sample = sample
        self._metrics = metrics
        self._card = card
        self._lag = lag

    async def run(self, now: float) -> None:
        self._lag.start()
        self._metrics.gauges(self._sample(now, self._lag.take()))
        self._card.refresh()

    async def aclose(self) -> None:
        self._lag.stop()
        await self._card.aclose()
