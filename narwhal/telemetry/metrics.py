"""The registry behind `/metrics` (http-api.md section 6): names `narwhal_*`, labels from bounded sets only.

Label values are engine IDs of the fleet file, roles, legs, outcomes, stages, exception classes and event
kinds of this program: never model text, client IDs or URLs. Used from the main loop alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from narwhal import __version__
from narwhal.model.effect import Told
from narwhal.model.monitoring import GaugeSample, StageReport
from narwhal.model.request import Counters, Outcome, RequestRow
from narwhal.telemetry.journal import JournalStats
from narwhal.telemetry.series import Tally, Times, gauge, gauges

REQUEST_BOUNDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0)
FIRST_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
TOKEN_BOUNDS: Final = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)

BATCH: Final = 64
"""Finished requests counted at once, in well under a millisecond."""

ROLES: Final = ("active", "standby", "fenced")


class RouterMetrics(Collector):
    """Implements ports.Metrics, and counts requests and events for the recorder."""

    def __init__(self, journal: Callable[[], JournalStats] = JournalStats) -> None:
        self._journal = journal
        self._requests = RequestSeries()
        self._finished: list[tuple[RequestRow, Outcome]] = []
        self._events = Tally("narwhal_events", "Journaled events by kind.", labels=("kind",))
        self._stages = Tally(
            "narwhal_monitor_stage_runs", "Monitor stages run, by outcome.", labels=("stage", "outcome")
        )
        self._stage_s = Tally(
            "narwhal_monitor_stage_seconds", "Seconds spent in monitor stages.", labels=("stage",)
        )
        self._detected = Tally(
            "narwhal_verdicts_detected",
            "Verdicts called for by engine and event kind, their ends too.",
            labels=("iid", "kind"),
        )
        self._enforced = Tally(
            "narwhal_verdicts_enforced",
            "Those of them that took effect: no guard kept them from it.",
            labels=("iid", "kind"),
        )
        self._sample: GaugeSample | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(namespace="narwhal", registry=self._registry)

    def request(self, row: RequestRow, outcome: Outcome) -> None:
        """The row is counted with others, at the latest by the next scrape: together they cost a tenth."""
        self._finished.append((row, outcome))
        if len(self._finished) >= BATCH:
            self._count_finished()

    def _count_finished(self) -> None:
        finished, self._finished = self._finished, []
        for row, outcome in finished:
            self._requests.count(row, outcome)

    def event(self, kind: str) -> None:
        self._events.add((kind,))

    def stage(self, report: StageReport) -> None:
        self._stages.add((report.stage, "failed" if report.failure else "ok"))
        self._stage_s.add((report.stage,), report.duration_s)

    def verdict(self, told: Told) -> None:
        labels = (str(told.fields.get("iid", "")), told.kind)
        self._detected.add(labels)
        if told.enforced:
            self._enforced.add(labels)

    def gauges(self, sample: GaugeSample) -> None:
        self._sample = sample

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Every family with its present values; called by the registry."""
        self._count_finished()
        info = GaugeMetricFamily("narwhal_info", "Version of this router.", labels=("version",))
        info.add_metric((__version__,), 1)
        yield info
        yield from self._requests.families()
        yield from (tally.family() for tally in (self._events, self._stages, self._stage_s))
        yield from (self._detected.family(), self._enforced.family())
        yield from _journal_families(self._journal())
        if self._sample is not None:
            yield from _gauge_families(self._sample)


class RequestSeries:
    """What finished requests add to."""

    def __init__(self) -> None:
        self._outcomes = Tally("narwhal_requests", "Finished requests by outcome.", labels=("outcome",))
        self._duration = Times(
            "narwhal_request_duration_seconds",
            "Arrival to the end of the response.",
            bounds=REQUEST_BOUNDS,
            labels=("outcome",),
        )
        self._ttft = Times("narwhal_ttft_seconds", "Arrival to the first token.", bounds=FIRST_BOUNDS)
        self._first_byte = Times(
            "narwhal_first_byte_seconds", "Arrival to the first byte of the response.", bounds=FIRST_BOUNDS
        )
        self._tpot = Times("narwhal_tpot_seconds", "Mean time per output token.", bounds=TOKEN_BOUNDS)
        self._kv_wait = Times(
            "narwhal_kv_wait_seconds",
            "KV handoff taken to the first token of its decode.",
            bounds=FIRST_BOUNDS,
        )
        self._queue_wait = Times(
            "narwhal_queue_wait_seconds", "Time in line for a place.", bounds=FIRST_BOUNDS
        )
        self._attempts = Tally("narwhal_attempts", "Prefill and decode attempts of finished requests.")
        self._tokens = Tally("narwhal_tokens", "Tokens of finished requests.", labels=("kind",))
        self._legs = Tally(
            "narwhal_engine_requests", "Finished requests by engine and leg.", labels=("iid", "leg")
        )
        self._failures = Tally(
            "narwhal_leg_failures", "Failed legs by engine and failure class.", labels=("iid", "leg", "class")
        )
        self._crossed = Tally(
            "narwhal_crossed_requests", "Requests whose KV went from one engine to another."
        )
        for outcome in Outcome:
            self._outcomes.add((outcome.value,), 0)

    def count(self, row: RequestRow, outcome: Outcome) -> None:
        """Adds one finished request; times that never came about are None in the row."""
        label = (outcome.value,)
        self._outcomes.add(label)
        self._duration.observe(row.duration_s, label)
        for times, seconds in (
            (self._ttft, row.ttft_s),
            (self._first_byte, row.first_byte_s),
            (self._tpot, row.tpot_s),
            (self._kv_wait, row.kv_wait_s),
            (self._queue_wait, row.queue_wait_s),
        ):
            if seconds is not None:
                times.observe(seconds)
        if row.attempts:
            self._attempts.add((), row.attempts)
        if row.input_len:
            self._tokens.add(("input",), row.input_len)
        if row.output_len:
            self._tokens.add(("output",), row.output_len)
        self._count_legs(row)

    def _count_legs(self, row: RequestRow) -> None:
        if row.prefill_iid is not None:
            self._legs.add((row.prefill_iid, "prefill"))
        if row.decode_iid is not None:
            self._legs.add((row.decode_iid, "decode"))
        if row.crossed:
            self._crossed.add(())
        for failure in row.attempt_failures:
            labels = (failure.get("iid", ""), failure.get("leg", ""), failure.get("class", ""))
            self._failures.add(labels)

    def families(self) -> Iterator[Metric]:
        for times in (
            self._duration, self._ttft, self._first_byte, self._tpot, self._kv_wait, self._queue_wait,
        ):  # fmt: skip
            yield times.family()
        for tally in (
            self._outcomes,
            self._attempts,
            self._tokens,
            self._legs,
            self._failures,
            self._crossed,
        ):
            yield tally.family()


def _journal_families(stats: JournalStats) -> Iterator[Metric]:
    for name, doc, value in (
        ("narwhal_journal_rows", "Rows written to the journal.", stats.written),
        ("narwhal_journal_dropped_rows", "Rows lost to a full queue or disk.", stats.dropped),
        ("narwhal_journal_failures", "Failed writes of the journal.", stats.failures),
    ):
        tally = Tally(name, doc)
        tally.add((), value)
        yield tally.family()


def _gauge_families(sample: GaugeSample) -> Iterator[Metric]:
    """The gauges of the last monitor pass."""
    yield gauges(
        "narwhal_role", "1 for the role this router has.", label="role", values=_one_of(sample.role, ROLES)
    )
    yield gauge("narwhal_epoch", sample.epoch, doc="Epoch of the ownership as last seen.")
    yield gauge("narwhal_ready", sample.ready, doc="1 while /ready answers 200.")
    yield gauge("narwhal_inflight_requests", sample.inflight, doc="Requests in hand.")
    yield gauge("narwhal_inflight_limit", sample.limit, doc="Requests served at a time at most.")
    yield gauge("narwhal_queued_requests", sample.queued, doc="Requests in line for a place.")
    yield gauge("narwhal_retry_credits", sample.credits, doc="What is left for further attempts.")
    yield gauge(
        "narwhal_event_loop_lag_seconds", sample.lag_s, doc="Longest delay of the loop since the last pass."
    )
    yield gauge("narwhal_monitoring_degraded", sample.degraded, doc="1 while monitoring is degraded.")
    yield from _fleet_gauges(sample)
    yield from _pool_gauges(sample)
    yield from _cluster_gauges(sample)


def _one_of(value: str, names: Iterable[str]) -> dict[str, float]:
    return {name: float(name == value) for name in names}


def _fleet_gauges(sample: GaugeSample) -> Iterator[Metric]:
    resident = GaugeMetricFamily(
        "narwhal_resident_requests", "Requests resident at engines.", labels=("iid", "leg")
    )
    for leg, counts in (("prefill", sample.resident_prefill), ("decode", sample.resident_decode)):
        for iid, count in counts.items():
            resident.add_metric((iid, leg), count)
    yield resident
    held = "KV handoffs whose blocks wait at their producer."
    yield gauges("narwhal_kv_held_handoffs", held, label="iid", values=sample.kv_held)
    orphaned = Tally("narwhal_kv_orphaned", "KV handoffs that nobody pulled in their lease.", labels=("iid",))
    for iid, count in sample.kv_orphaned.items():
        orphaned.add((iid,), count)
    yield orphaned.family()
    yield gauges(
        "narwhal_eligible_engines", "Engines that may take new work.", label="role", values=sample.eligible
    )
    yield gauges(
        "narwhal_engine_shortfall", "Engines missing to the floor.", label="role", values=sample.shortfall
    )
    for word, doc, windows in (
        ("scored", "Drift windows that were scored.", sample.windows_scored),
        ("undersampled", "Drift windows with too few samples.", sample.windows_undersampled),
    ):
        tally = Tally(f"narwhal_health_windows_{word}", doc, labels=("iid",))
        for iid, count in windows.items():
            tally.add((iid,), count)
        yield tally.family()


def _pool_gauges(sample: GaugeSample) -> Iterator[Metric]:
    for name, doc, values in (
        (
            "narwhal_pool_busy",
            "Connections in use.",
            {pool: seats.busy for pool, seats in sample.pools.items()},
        ),
        (
            "narwhal_pool_limit",
            "Connections at most.",
            {pool: seats.limit for pool, seats in sample.pools.items()},
        ),
        (
            "narwhal_pool_waiting",
            "Callers without a seat.",
            {p: seats.waiting for p, seats in sample.pools.items()},
        ),
    ):
        yield gauges(name, doc, label="pool", values=values)


def _cluster_gauges(sample: GaugeSample) -> Iterator[Metric]:
    totals = Tally("narwhal_cluster_requests", "Cumulative counters of all routers.", labels=("counter",))
    for field in fields(Counters):
        totals.add((field.name,), getattr(sample.totals, field.name))
    yield totals.family()
    failures = Tally("narwhal_store_failures", "Calls of the shared store without an answer.")
    failures.add((), sample.store_failures)
    yield failures.family()
    if sample.lease_valid_s is not None:
        yield gauge(
            "narwhal_lease_valid_seconds", sample.lease_valid_s, doc="Seconds that the lease is trusted."
        )
    yield gauge("narwhal_drift", sample.drift, doc="Things in which this standby differs from the owner.")
    if sample.mirror_age_s is not None:
        yield gauge("narwhal_mirror_age_seconds", sample.mirror_age_s, doc="Age of the mirrored state.")
