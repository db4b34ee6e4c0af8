"""`GET /metrics` of a simulated engine: the series that Narwhal reads, in Prometheus' text form."""

from __future__ import annotations

from narwhal.sim.engine import SimEngine


def metrics_text(engine: SimEngine, *, process_start: float) -> str:
    """Values as the Python client prints them (process start with 12 digits: 10 ms steps)."""
    labels = f'{{engine="0",model_name="{engine.settings.model}"}}'
    stats, ledger, pool = engine.stats, engine.ledger, engine.pool
    series: list[tuple[str, str, str, str]] = [
        ("process_start_time_seconds", "gauge", "", f"{process_start:.11e}"),
        ("vllm:num_requests_running", "gauge", labels, f"{float(engine.running)}"),
        ("vllm:num_requests_waiting", "gauge", labels, f"{float(engine.waiting)}"),
        ("vllm:kv_cache_usage_perc", "gauge", labels, f"{pool.used / pool.total}"),
        ("vllm:nixl_num_failed_transfers_total", "counter", labels, f"{float(stats.failed_transfers)}"),
        ("vllm:nixl_num_kv_expired_reqs_total", "counter", labels, f"{float(ledger.expired)}"),
    ]
    lines = []
    for name, kind, marks, value in series:
        lines += [f"# TYPE {name} {kind}", f"{name}{marks} {value}"]
    lines += [
        "# TYPE vllm:cache_config_info gauge",
        f'vllm:cache_config_info{{block_size="{engine.settings.block_tokens}",engine="0",'
        f'num_gpu_blocks="{engine.settings.kv_blocks}"}} 1.0',
    ]
    lines += _transfer_times(engine)
    return "\n".join(lines) + "\n"


def _transfer_times(engine: SimEngine) -> list[str]:
    name, count = "vllm:nixl_xfer_time_seconds", float(engine.stats.transfers)
    labels = f'engine="0",model_name="{engine.settings.model}"'
    return [
        f"# TYPE {name} histogram",
        f'{name}_bucket{{{labels},le="0.005"}} {count}',
        f'{name}_bucket{{{labels},le="+Inf"}} {count}',
        f"{name}_count{{{labels}}} {count}",
        f"{name}_sum{{{labels}}} {count * 0.001}",
    ]
