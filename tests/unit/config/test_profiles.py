"""The profile store: what is read, and each rule with file, engine and field in its message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from narwhal.config.profiles import FIELDS, read_profiles
from narwhal.config.rules import REQUIRED, Kind
from narwhal.errors import ConfigError
from narwhal.model.engine import EngineSpec

ROW = {
    "iid": "e0",
    "ttft_a": 1e-8,
    "ttft_b": 0.0001,
    "ttft_c": 0.01,
    "tpot_slope": 1e-6,
    "tpot_request_slope": 0.0002,
    "tpot_intercept": 0.008,
    "kv_capacity_tokens": 60000,
    "decode_min_requests": 1,
    "decode_max_requests": 64,
    "decode_min_kv_tokens": 100,
    "decode_max_kv_tokens": 50000,
    "decode_fit_mape": 0.02,
    "decode_cv_mape": 0.1,
    "generation_digest": "sha256:00",
}
FLEET = (EngineSpec("e0", "http://e0.test"), EngineSpec("e1", "http://e1.test"))


def store(tmp_path: Path, *rows: Any, **head: Any) -> str:
    document = {"schema": "narwhal.profiles", "schema_version": 1, "profiles": list(rows), **head}
    path = tmp_path / "profiles.json"
    path.write_text(json.dumps(document))
    return str(path)


def problems(path: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_profiles(path, FLEET)
    assert all(problem.startswith(f"{path}: ") for problem in caught.value.problems)
    return str(caught.value)


def test_a_whole_row_is_taken_field_by_field(tmp_path):
    path = store(tmp_path, ROW, {**ROW, "iid": "e1"}, meta={"engine_auth": "boundary"})
    reading = read_profiles(path, FLEET)
    assert reading.warnings == ()
    assert reading.engine_auth == "boundary"
    assert set(reading.profiles) == {"e0", "e1"}
    assert {name: getattr(reading.profiles["e0"], name) for name in ROW} == ROW


def test_optional_fields_have_their_defaults(tmp_path):
    needed = ("iid", "ttft_a", "ttft_b", "ttft_c", "tpot_slope", "tpot_intercept")
    reading = read_profiles(store(tmp_path, {name: ROW[name] for name in needed}), FLEET[:1])
    profile = reading.profiles["e0"]
    assert (profile.tpot_request_slope, profile.kv_capacity_tokens) == (0.0, None)
    assert {field.name for field in FIELDS if field.default is REQUIRED} == set(needed)


def test_a_missing_store_is_a_warning_and_no_profiles(tmp_path):
    reading = read_profiles(str(tmp_path / "none.json"), FLEET)
    assert reading.profiles == {}
    assert "resident work" in reading.warnings[0]


def test_engines_without_a_row_and_rows_without_an_engine_are_warned_about(tmp_path):
    reading = read_profiles(store(tmp_path, ROW, {**ROW, "iid": "e9"}), FLEET)
    assert set(reading.profiles) == {"e0"}
    assert any("e1" in warning and "resident work" in warning for warning in reading.warnings)
    assert any("e9" in warning for warning in reading.warnings)


def test_an_unknown_field_is_a_warning_with_its_engine(tmp_path):
    (warning,) = read_profiles(store(tmp_path, {**ROW, "ttft_d": 1}), FLEET[:1]).warnings
    assert "e0" in warning
    assert "ttft_d" in warning


NUMBERS = [field.name for field in FIELDS if field.kind is Kind.NUMBER]
INTEGERS = [field.name for field in FIELDS if field.kind is Kind.INTEGER]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, "1", [], {}, -1, -0.5])
def test_numbers_are_finite_and_not_negative(tmp_path, name, value):
    assert f"e0: {name} must be" in problems(store(tmp_path, {**ROW, name: value}))


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [True, "1", 1.0, 1.5, -1])
def test_booleans_strings_and_fractions_are_no_integers(tmp_path, name, value):
    assert f"e0: {name} must be" in problems(store(tmp_path, {**ROW, name: value}))


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused(tmp_path, text):
    path = store(tmp_path, {**ROW, "ttft_a": "HERE"})
    Path(path).write_text(Path(path).read_text().replace('"HERE"', text))
    assert "e0: ttft_a must be a finite number" in problems(path)


@pytest.mark.parametrize("name", [field.name for field in FIELDS if field.default is REQUIRED])
def test_required_fields_must_be_there(tmp_path, name):
    row = {key: value for key, value in ROW.items() if key != name}
    assert f"{name} is required" in problems(store(tmp_path, row))


def test_the_slope_must_be_positive(tmp_path):
    assert "tpot_slope must be > 0" in problems(store(tmp_path, {**ROW, "tpot_slope": 0}))


@pytest.mark.parametrize("what", ["requests", "kv_tokens"])
def test_a_decode_range_must_not_be_upside_down(tmp_path, what):
    row = {**ROW, f"decode_min_{what}": 10, f"decode_max_{what}": 9}
    assert f"decode_min_{what} must be ≤ decode_max_{what}" in problems(store(tmp_path, row))


@pytest.mark.parametrize("iid", [[], {}, 3, ""])
def test_an_engine_id_must_be_text(tmp_path, iid):
    assert "profiles[0]: iid must be a" in problems(store(tmp_path, {**ROW, "iid": iid}))


def test_two_rows_of_one_engine_are_refused(tmp_path):
    assert "e0: iid is given twice" in problems(store(tmp_path, ROW, ROW))


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ({"schema": "narwhal.fleet"}, "schema must be"),
        ({"schema_version": 2}, "schema_version must be 1"),
        ({"schema_version": True}, "schema_version must be 1"),
        ({"profiles": {}}, "profiles must be a list"),
        ({"meta": []}, "meta must be an object"),
    ],
)
def test_the_head_must_be_of_this_schema(tmp_path, head, says):
    assert says in problems(store(tmp_path, ROW, **head))


@pytest.mark.parametrize(
    ("data", "says"), [(b"{", "not JSON"), (b"[]", "must be an object"), (b"\xff", "UTF-8")]
)
def test_what_is_no_json_object_is_refused(tmp_path, data, says):
    path = tmp_path / "profiles.json"
    path.write_bytes(data)
    assert says in problems(str(path))


def test_every_problem_is_told_at_once(tmp_path):
    told = problems(store(tmp_path, {**ROW, "ttft_a": -1, "iid": "e0"}, {"iid": "e1"}, 7))
    assert len(told.splitlines()) == 1 + 5 + 1
