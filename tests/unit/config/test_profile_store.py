"""The profile store as it is written: what is read back, what stays, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from narwhal.config.profile_store import ProfileStore
from narwhal.config.profiles import read_profiles
from narwhal.errors import ConfigError
from narwhal.model.engine import EngineProfile, EngineSpec

ENGINES = [EngineSpec("e0", "http://e0"), EngineSpec("e1", "http://e1")]
ROW = EngineProfile(
    "e0",
    ttft_a=1e-9,
    ttft_b=2e-5,
    ttft_c=0.01,
    tpot_slope=1e-8,
    tpot_intercept=0.02,
    decode_max_requests=64,
    decode_max_kv_tokens=70_000,
    decode_fit_mape=0.01,
    decode_cv_mape=0.02,
)
BOUNDARY = {"engine_auth": "boundary"}


def test_rows_are_read_back_by_the_router(tmp_path: Path) -> None:
    path = tmp_path / "made" / "profiles.json"
    rows = [ROW, replace(ROW, iid="e1", kv_capacity_tokens=100, generation_digest="sha256:0")]
    ProfileStore(path, ENGINES).merge(rows, meta=BOUNDARY)
    reading = read_profiles(str(path), ENGINES)
    assert reading.profiles == {row.iid: row for row in rows}
    assert reading.engine_auth == "boundary"
    assert reading.warnings == ()


def test_other_rows_and_what_else_the_store_says_stay(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    ProfileStore(path, ENGINES).merge([ROW, replace(ROW, iid="e9")], meta={**BOUNDARY, "host": "gpu-1"})
    ProfileStore(path, ENGINES).merge([replace(ROW, ttft_c=0.5)], meta=BOUNDARY)
    store = ProfileStore(path, ENGINES)
    assert store.rows["e0"]["ttft_c"] == 0.5
    assert store.rows["e9"]["ttft_c"] == 0.01
    assert store.meta["host"] == "gpu-1"


def test_rows_of_two_auth_modes_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    ProfileStore(path, ENGINES).merge([ROW, replace(ROW, iid="e1")], meta=BOUNDARY)
    before = path.read_text()
    keyed = {"engine_auth": "engine-credential"}
    with pytest.raises(ConfigError, match="e1 were measured with engine_auth boundary, this run with e"):
        ProfileStore(path, ENGINES).merge([ROW], meta=keyed)
    assert path.read_text() == before
    ProfileStore(path, ENGINES).merge([ROW, replace(ROW, iid="e1")], meta=keyed)
    assert read_profiles(str(path), ENGINES).engine_auth == "engine-credential"


def test_a_store_that_cannot_be_loaded_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    path.write_text(json.dumps({"schema": "narwhal.profiles", "schema_version": 1, "profiles": [{}]}))
    with pytest.raises(ConfigError, match="iid is required"):
        ProfileStore(path, ENGINES)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = ProfileStore(tmp_path / "profiles.json", ENGINES)
    store.path = tmp_path / "file" / "profiles.json"
    with pytest.raises(ConfigError, match="cannot be written"):
        store.merge([ROW], meta=BOUNDARY)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
