"""All gates, in their order. A later gate leaves out the engines that an earlier one did not reach."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from narwhal.measure.gates.bench import Bench
from narwhal.measure.gates.identity import contract, model, reach
from narwhal.measure.gates.kv import consume, produce
from narwhal.measure.gates.pace import pace, slo, tokenize
from narwhal.measure.gates.profile import profile
from narwhal.measure.gates.verdict import Finding, GateReport

Gate = Callable[[Bench], Awaitable[list[Finding]]]

GATES: Final[Mapping[str, Gate]] = {
    "reach": reach,
    "contract": contract,
    "profile": profile,
    "model": model,
    "pace": pace,
    "tokenize": tokenize,
    "produce": produce,
    "consume": consume,
    "slo": slo,
}
"""In their order."""


async def run_gates(
    bench: Bench, tell: Callable[[GateReport], None], *, begin: Callable[[str], None]
) -> list[GateReport]:
    """`begin` gets the name of each gate before it is tried, `tell` its report when it is there."""
    reports = []
    for name, gate in GATES.items():
        begin(name)
        report = GateReport(name, tuple(await gate(bench)))
        tell(report)
        reports.append(report)
    return reports
