from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from narwhal.errors import ConfigError
from narwhal.model.engine import EngineProfile
from narwhal.sim.settings import SimSettings
from narwhal.sim.timing import Timing, load_profiles

ROW = {"iid": "e0", "ttft_a": 0.0, "ttft_b": 0.001, "ttft_c": 0.1, "tpot_slope": 1e-6, "tpot_intercept": 0.01}
PROFILE = EngineProfile(**ROW, tpot_request_slope=0.001)  # type: ignore[arg-type]


def test_flat_times_do_not_depend_on_the_load() -> None:
    timing = Timing(SimSettings(prefill_s=0.3, interval_s=0.02))
    assert [timing.prefill_done_at(tokens, 5.0) for tokens in (1, 1000)] == [5.3, 5.3]
    assert timing.interval_s(10**6, 100) == 0.02


def test_what_is_cached_costs_nothing() -> None:
    assert Timing(SimSettings(prefill_s=0.3)).prefill_done_at(0, 5.0) == 5.0


def test_prefills_of_a_profile_run_one_after_the_other() -> None:
    timing = Timing(SimSettings(profile=PROFILE))
    assert [round(timing.prefill_done_at(100, 5.0), 6) for _ in range(2)] == [5.2, 5.4]
    assert round(timing.prefill_done_at(100, 9.0), 6) == 9.2


def test_token_intervals_of_a_profile_grow_with_the_load() -> None:
    assert round(Timing(SimSettings(profile=PROFILE)).interval_s(10_000, 5), 6) == 0.025


def write(path: Path, document: Any) -> Path:
    file = path / "profiles.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


def test_profiles_are_read_by_engine(tmp_path: Path) -> None:
    document = {"schema": "narwhal.profiles", "schema_version": 1, "profiles": [{**ROW, "note": "kept out"}]}
    assert load_profiles(write(tmp_path, document))["e0"].ttft_c == 0.1


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "is not a narwhal.profiles document"),
        ({"schema": "narwhal.fleet", "profiles": []}, "is not a narwhal.profiles document"),
        ({"schema": "narwhal.profiles", "profiles": [{}]}, "profiles[0].iid"),
        ({"schema": "narwhal.profiles", "profiles": [{**ROW, "ttft_b": True}]}, "profiles[0].ttft_b"),
        ({"schema": "narwhal.profiles", "profiles": [{**ROW, "ttft_b": -1}]}, "profiles[0].ttft_b"),
        ({"schema": "narwhal.profiles", "profiles": [{**ROW, "ttft_b": 10**400}]}, "profiles[0].ttft_b"),
    ],
)
def test_a_wrong_profiles_file_is_told_by_file_and_field(tmp_path: Path, document: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_profiles(write(tmp_path, document))
    assert message in str(caught.value)
    assert "profiles.json" in str(caught.value)


def test_a_missing_profiles_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_profiles(tmp_path / "none.json")
