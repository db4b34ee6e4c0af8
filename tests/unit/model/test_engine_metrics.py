"""What is read of an engine's metrics."""

from __future__ import annotations

from narwhal.model.engine_metrics import EngineLoad, read_kv_capacity, read_load
from narwhal.model.model_list import read_models

SEEN = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 1.0
vllm:num_requests_running_by_reason{engine="0"} 9.0
vllm:num_requests_waiting{engine="0",model_name="a } b"} 2.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="1",num_gpu_blocks="500"} 1.0
"""


def test_load_is_summed_over_an_engines_cores() -> None:
    assert read_load(SEEN) == EngineLoad(4, 2)
    assert not EngineLoad(0, 1).idle
    assert EngineLoad(0, 0).idle


def test_load_that_is_not_told_is_unknown() -> None:
    assert read_load(b"") is None
    assert read_load(b"vllm:num_requests_running 1\n") is None
    assert read_load(b"vllm:num_requests_running 1\nvllm:num_requests_waiting nan\n") is None
    for odd in (b"-1", b"inf", b"1e300", b"x"):
        assert read_load(b"vllm:num_requests_running 1\nvllm:num_requests_waiting " + odd + b"\n") is None


def test_capacity_is_blocks_times_their_size() -> None:
    assert read_kv_capacity(SEEN) == 24_000
    assert read_kv_capacity(b'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n') is None
    assert read_kv_capacity(b"") is None
    for odd in ("²", "٣", "9" * 5000):
        told = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{odd}"}} 1.0\n'
        assert read_kv_capacity(told.encode()) is None


def test_models_are_read_with_their_lengths() -> None:
    rows = b'{"id": "a", "max_model_len": 5}, {"id": "b"}, {"id": "a"}, {"id": "c", "max_model_len": true}'
    body = b'{"data": [' + rows + b"]}"
    assert read_models(body) == {"a": 5, "b": None, "c": None}
    for odd in (b"", b"[]", b"{}", b'{"data": [3]}', b'{"data": [{}]}'):
        assert read_models(odd) == {}
