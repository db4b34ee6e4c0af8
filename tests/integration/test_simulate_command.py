"""`narwhal simulate` as a process."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import psutil
import pytest

from tests.support.crowd import Viewer, all_over, view
from tests.support.engines import call, engine_process
from tests.support.processes import Process, python
from tests.support.wire import play


def test_prints_every_engine_and_ends_cleanly_on_sigterm() -> None:
    with engine_process(3, "--model", "tiny") as served:
        assert [engine.name for engine in served.engines] == ["e0", "e1", "e2"]
        for engine in served.engines:
            assert call("GET", f"{engine.url}/v1/models")["data"][0]["id"] == "tiny"
            assert engine.stats()["engine"] == engine.name
        served.process.send(signal.SIGTERM)
        assert served.process.ended() == 0


def test_kv_moves_between_processes() -> None:
    with engine_process(1) as one, engine_process(1) as other:
        producer, consumer = one.engines[0], other.engines[0]
        wants = {"do_remote_decode": True}
        prefill = {"prompt": "across processes", "max_tokens": 1, "kv_transfer_params": wants}
        kv = call("POST", f"{producer.url}/v1/completions", prefill)["kv_transfer_params"]
        assert producer.stats()["held"] == 1
        decode = {"prompt": "across processes", "max_tokens": 5, "kv_transfer_params": kv}
        assert (
            call("POST", f"{consumer.url}/v1/completions", decode)["choices"][0]["finish_reason"] == "length"
        )
        assert (producer.stats()["held"], producer.stats()["pulled"]) == (0, 1)
        assert consumer.stats()["transfers"] == 1


def test_ports_follow_each_other_from_the_first() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with engine_process(1, "--port", str(port)) as served:
        assert served.engines[0].port == port
        second = Process(python("narwhal.cli.simulate", "--port", str(port)))
        assert second.ended() == 2
        assert "engine e0: cannot listen" in second.output


def a_free_port_before_a_taken_one(taken: socket.socket) -> int | None:
    """Binds `taken`; None where the port before it is in use."""
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    before = int(taken.getsockname()[1]) - 1
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", before))
        except OSError:
            return None
    return before


def test_a_port_in_use_behind_the_first_is_one_sentence() -> None:
    port = None
    while port is None:
        with socket.socket() as taken:
            port = a_free_port_before_a_taken_one(taken)
            if port is not None:
                engines = Process(python("narwhal.cli.simulate", "--engines", "2", "--port", str(port)))
                assert engines.ended() == 2
    assert "cannot listen" in engines.output
    assert "Traceback" not in engines.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engines", "0"], "--engines 0: must be at least 1"),
        (["--interval", "nan"], "--interval nan: must be finite seconds"),
        (["--engines", "3", "--port", "65534"], "--port 65534: leaves no port for the last of 3 engines"),
        (["--engines", "2", "--side-port", "65535"], "--side-port 65535: leaves no port"),
        (["--kv-blocks", "0"], "--kv-blocks 0: must be at least 1"),
        (["--names", "a,a"], "--names a,a: must be different"),
        (["--port", "70000"], "--port 70000: must be 0"),
        (["--api-key-env", "NO_SUCH_KEY"], "--api-key-env NO_SUCH_KEY: the variable is not set"),
        (["--profiles", "/nowhere.json"], "/nowhere.json: cannot be read"),
        (["--engine", "2"], "--engine"),
    ],
)
def test_wrong_usage_exits_2_and_says_why(arguments: list[str], said: str) -> None:
    process = Process(python("narwhal.cli.simulate", *arguments))
    assert process.ended() == 2
    assert said in process.output


def test_a_profiles_file_sets_the_pace_by_name(tmp_path: Path) -> None:
    row = {"ttft_a": 0, "ttft_b": 0, "ttft_c": 0.01, "tpot_slope": 1e-9, "tpot_intercept": 0.001}
    file = tmp_path / "profiles.json"
    file.write_text(json.dumps({"schema": "narwhal.profiles", "profiles": [{"iid": "p0", **row}]}))
    with engine_process(1, "--names", "p0", "--profiles", str(file)) as served:
        answer = call("POST", f"{served.engines[0].url}/v1/completions", {"prompt": "x", "max_tokens": 3})
        assert answer["usage"]["completion_tokens"] == 3
    process = Process(python("narwhal.cli.simulate", "--names", "d0", "--profiles", str(file)))
    assert process.ended() == 2
    assert "has no row for engine d0" in process.output


def test_an_api_key_guards_the_v1_routes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_KEY", "secret")
    with engine_process(1, "--api-key-env", "SIMULATED_KEY") as served:
        url = served.engines[0].url
        with pytest.raises(OSError, match="401"):
            call("GET", f"{url}/v1/models")
        assert call("GET", f"{url}/version") == {"version": "0.32.0"}


def test_two_thousand_streams_at_200_ms_a_token_fit_one_core() -> None:
    streams, tokens, frame_budget_s = 2000, 5, 100e-6

    async def crowd(url: str) -> list[Viewer]:
        body = {"prompt": "crowded", "max_tokens": tokens, "stream": True}
        viewers = [await view(url, body) for _ in range(streams)]
        await all_over(viewers)
        return viewers

    with engine_process(1, "--interval", "0.2") as served:
        spent = psutil.Process(served.process.pid).cpu_times
        before = spent().user + spent().system
        viewers = play(crowd(served.engines[0].url), within_s=120.0)
        used_s = spent().user + spent().system - before
        assert all(viewer.complete and viewer.tokens == tokens for viewer in viewers)
        assert served.engines[0].stats()["frames"] == streams * tokens
        # 10,000 frames a second leave 100 µs of CPU for each, parsing the requests aside.
        assert used_s <= streams * tokens * frame_budget_s + streams * 1e-3
