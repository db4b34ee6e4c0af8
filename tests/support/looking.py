"""What looks at engines apart from traffic, made for tests: legs of probes, and a prober for health alone."""

from __future__ import annotations

from narwhal.engine.dialect import make_dialect
from narwhal.monitor.probe_legs import Probed, ProbeLegs
from narwhal.monitor.prober import Prober
from narwhal.monitor.validation import Validation
from narwhal.ports import ControlClient, ControlGate, EvidenceSink


def legs_of(control: ControlClient, gate: ControlGate, *, budget_s: float) -> ProbeLegs:
    """Of the model `simulated`; `budget_s` bounds a health check and a leg."""
    probed = Probed("simulated", budget_s, budget_s)
    dialect = make_dialect("vllm", "nixl")
    return ProbeLegs(control, dialect, gate=gate, probed=probed, taken=lambda iid: False)


def prober_of(legs: ProbeLegs, sink: EvidenceSink) -> Prober:
    """Owes no readmission check and knows no stream."""
    return Prober(legs, Validation(()), sink=sink, streaming=lambda iid: False)
