"""Where evidence is judged: the clock is read once, the fleet steps, and its effects are carried out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from narwhal.clock import Clock
from narwhal.model.effect import Effect, ProbeWanted, RequestSuspected, Told
from narwhal.model.evidence import Evidence, LegSucceeded
from narwhal.policy.fleet import Fleet
from narwhal.ports import ControlGate, Metrics, Recorder


class Prober(Protocol):
    """Runs probes beside everything else and reports what they come to as evidence."""

    def wanted(self, probe: ProbeWanted) -> None:
        """Begins the probe, unless one of its kind runs on that engine. Never waits."""


class Judge:
    """Implements ports.EvidenceSink. Main loop only; good news of a sound engine costs a look-up.

    `gate` is the bare control gate. Only the owner of the fleet judges: what a fenced router's last streams
    and probes show is nobody's verdict, neither counted nor told, and its successor looks for itself.
    """

    __slots__ = ("_clock", "_fleet", "_gate", "_metrics", "_recorder", "prober")

    def __init__(
        self, fleet: Fleet, *, gate: ControlGate, recorder: Recorder, metrics: Metrics, clock: Clock
    ) -> None:
        self._fleet = fleet
        self._gate = gate
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock
        self.prober: Prober | None = None
        """Set once, by whoever wires: it reports to this judge and so is made after it."""

    def report(self, evidence: Evidence) -> bool:
        now = self._clock.now()
        # Good news is the hot path and changes nothing that would be told of a sound engine.
        if isinstance(evidence, LegSucceeded):
            effects = self._fleet.succeeded(evidence, now)
        elif not self._gate.may_admit(now):
            return False
        else:
            effects = self._fleet.step(evidence, now)
        return bool(effects) and self.carry_out(effects, now)

    def tick(self, now: float) -> None:
        """Once a monitor pass: what time alone brings."""
        self.carry_out(self._fleet.tick(now), now)

    def carry_out(self, effects: Iterable[Effect], now: float) -> bool:
        """Tells and asks, as the owner only. True: the request behind the evidence is suspected."""
        if not self._gate.may_admit(now):
            return False
        suspected = False
        for effect in effects:
            match effect:
                case Told():
                    self._metrics.verdict(effect)
                    self._recorder.event(effect.kind, effect.fields)
                case ProbeWanted():
                    if self.prober is not None:
                        self.prober.wanted(effect)
                case RequestSuspected():
                    suspected = True
        return suspected
