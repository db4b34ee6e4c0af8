"""/metrics: names, labels from bounded sets, values that agree with what was counted."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from narwhal import __version__
from narwhal.model.monitoring import GaugeSample, PoolView, StageReport
from narwhal.model.request import Counters, Outcome
from narwhal.telemetry.journal import JournalStats
from narwhal.telemetry.metrics import RouterMetrics
from tests.support.rows import finished_row

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"
FAILURE = {"leg": "prefill", "iid": "e2", "class": "timeout", "error": "http://10.0.0.9 said 'secret'"}


def sample(**changes: Any) -> GaugeSample:
    values: dict[str, Any] = {
        "role": "active",
        "epoch": 41,
        "ready": True,
        "resident_prefill": {"e0": 1, "e1": 0},
        "resident_decode": {"e0": 0, "e1": 3},
        "kv_held": {"e0": 4, "e1": 0},
        "kv_orphaned": {"e0": 2, "e1": 0},
        "eligible": {"prefill": 1, "decode": 2},
        "shortfall": {"prefill": 0, "decode": 1},
        "inflight": 4,
        "limit": 512,
        "queued": 3,
        "credits": 8.5,
        "lag_s": 0.002,
        "degraded": False,
        "store_failures": 2,
        "mirror_age_s": None,
        "drift": 2,
        "pools": {"data": PoolView(limit=512, busy=5, waiting=0)},
        "totals": Counters(served=9, failed=1, offered=10),
        "lease_valid_s": 3.5,
        "windows_scored": {"e1": 7},
        "windows_undersampled": {"e1": 2},
    }
    return GaugeSample(**{**values, **changes})


def read(metrics: RouterMetrics) -> dict[str, float]:
    """Sample as text (`name{label="value"}`) → value."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for one in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(one.labels.items()))
            found[one.name + (f"{{{labels}}}" if labels else "")] = one.value
    return found


def test_every_name_is_ours() -> None:
    metrics = RouterMetrics()
    metrics.request(finished_row(attempt_failures=[FAILURE], crossed=True), Outcome.SERVED)
    metrics.gauges(sample(mirror_age_s=1.0))
    metrics.stage(StageReport(stage="handoff", at=0.0, duration_s=0.1))
    metrics.event("hold")
    names = re.findall(r"^# TYPE (\S+)", metrics.render().decode(), re.MULTILINE)
    assert len(names) > 30
    assert all(name.startswith("narwhal_") for name in names)


@pytest.mark.skipif(sys.platform != "linux", reason="the process families are Linux's")
def test_the_document_lists_every_name_with_its_type() -> None:
    metrics = RouterMetrics()
    metrics.gauges(sample(mirror_age_s=1.0))
    types = re.findall(r"^# TYPE (\S+) (\S+)$", metrics.render().decode(), re.MULTILINE)
    rows = re.findall(r"^\| `(narwhal_\w+)` \| (\w+) \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == types


def test_outcomes_start_at_zero_and_count() -> None:
    metrics = RouterMetrics()
    assert read(metrics)['narwhal_requests_total{outcome="expired"}'] == 0
    for outcome in (Outcome.SERVED, Outcome.SERVED, Outcome.INVALID):
        metrics.request(finished_row(), outcome)
    values = read(metrics)
    assert values['narwhal_requests_total{outcome="served"}'] == 2
    assert values['narwhal_requests_total{outcome="invalid_requests"}'] == 1
    assert values['narwhal_request_duration_seconds_count{outcome="served"}'] == 2


def test_times_fall_into_cumulative_buckets() -> None:
    metrics = RouterMetrics()
    for seconds in (0.01, 0.011, 31.0):
        metrics.request(finished_row(ttft_s=seconds), Outcome.SERVED)
    values = read(metrics)
    assert values['narwhal_ttft_seconds_bucket{le="0.01"}'] == 1
    assert values['narwhal_ttft_seconds_bucket{le="0.025"}'] == 2
    assert values['narwhal_ttft_seconds_bucket{le="30.0"}'] == 2
    assert values['narwhal_ttft_seconds_bucket{le="+Inf"}'] == 3
    assert values["narwhal_ttft_seconds_count"] == 3
    assert round(values["narwhal_ttft_seconds_sum"], 3) == 31.021


def test_what_never_came_about_is_not_observed() -> None:
    metrics = RouterMetrics()
    row = finished_row(
        ttft_s=None, tpot_s=None, attempts=0, first_byte_s=None, kv_wait_s=None, input_len=None, output_len=0,
        prefill_iid=None, decode_iid=None,
    )  # fmt: skip
    metrics.request(row, Outcome.REJECTED)
    values = read(metrics)
    assert not any(
        re.match(r"narwhal_(ttft|tpot|first_byte|kv_wait|queue_wait|attempts|tokens|engine_requests)", name)
        for name in values
    )


def test_attempts_are_counted_and_waits_in_line_where_there_were_any() -> None:
    metrics = RouterMetrics()
    metrics.request(finished_row(attempts=3, queue_wait_s=0.4), Outcome.SERVED)
    metrics.request(finished_row(), Outcome.SERVED)
    values = read(metrics)
    assert values["narwhal_attempts_total"] == 4
    assert (values["narwhal_queue_wait_seconds_count"], values["narwhal_queue_wait_seconds_sum"]) == (1, 0.4)


def test_tokens_legs_and_failures_are_told_by_engine_without_their_texts() -> None:
    metrics = RouterMetrics()
    metrics.request(finished_row(attempt_failures=[FAILURE], client_rid="client-7"), Outcome.SERVED)
    values = read(metrics)
    assert values['narwhal_tokens_total{kind="input"}'] == 128
    assert values['narwhal_tokens_total{kind="output"}'] == 32
    assert values['narwhal_engine_requests_total{iid="e1",leg="decode"}'] == 1
    assert values['narwhal_leg_failures_total{class="timeout",iid="e2",leg="prefill"}'] == 1
    text = metrics.render().decode()
    assert not any(word in text for word in ("secret", "10.0.0.9", "client-7", "r1-p"))


def test_gauges_are_those_of_the_last_pass() -> None:
    metrics = RouterMetrics()
    assert "narwhal_ready" not in read(metrics)
    metrics.gauges(sample(ready=False, epoch=40))
    metrics.gauges(sample())
    values = read(metrics)
    assert values["narwhal_ready"] == 1
    assert values["narwhal_epoch"] == 41
    assert (values["narwhal_queued_requests"], values["narwhal_retry_credits"]) == (3, 8.5)
    assert values['narwhal_role{role="active"}'] == 1
    assert values['narwhal_role{role="standby"}'] == 0
    assert values['narwhal_resident_requests{iid="e1",leg="decode"}'] == 3
    assert values['narwhal_engine_shortfall{role="decode"}'] == 1
    assert values['narwhal_pool_busy{pool="data"}'] == 5
    assert values['narwhal_cluster_requests_total{counter="offered"}'] == 10
    assert values["narwhal_store_failures_total"] == 2
    assert values["narwhal_lease_valid_seconds"] == 3.5
    assert values['narwhal_health_windows_scored_total{iid="e1"}'] == 7
    assert values['narwhal_health_windows_undersampled_total{iid="e1"}'] == 2
    assert "narwhal_mirror_age_seconds" not in values


def test_stages_events_and_the_journal_are_counted() -> None:
    metrics = RouterMetrics(journal=lambda: JournalStats(written=5, dropped=2, failures=1))
    metrics.stage(StageReport(stage="handoff", at=0.0, duration_s=0.25))
    metrics.stage(StageReport(stage="handoff", at=1.0, duration_s=0.5, failure="TimeoutError"))
    metrics.event("ejection")
    values = read(metrics)
    assert values['narwhal_monitor_stage_runs_total{outcome="ok",stage="handoff"}'] == 1
    assert values['narwhal_monitor_stage_runs_total{outcome="failed",stage="handoff"}'] == 1
    assert values['narwhal_monitor_stage_seconds_total{stage="handoff"}'] == 0.75
    assert values['narwhal_events_total{kind="ejection"}'] == 1
    assert values["narwhal_journal_rows_total"] == 5
    assert values["narwhal_journal_dropped_rows_total"] == 2
    assert values["narwhal_journal_failures_total"] == 1


def test_the_version_is_told() -> None:
    assert read(RouterMetrics())[f'narwhal_info{{version="{__version__}"}}'] == 1


def test_an_odd_engine_id_is_escaped() -> None:
    metrics = RouterMetrics()
    metrics.request(finished_row(prefill_iid='a"b\\c\nd'), Outcome.SERVED)
    families = text_string_to_metric_families(metrics.render().decode())
    iids = {one.labels["iid"] for family in families for one in family.samples if "iid" in one.labels}
    assert 'a"b\\c\nd' in iids
