"""What makes a row of the profile store unfit, each with its figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from narwhal.measure.gates.bench import Bench, Extent, Store
from narwhal.measure.gates.profile import faults_of
from narwhal.model.engine import EngineProfile, EngineSpec, Role
from tests.support.settings import fleet_config, serving_settings

ROW = EngineProfile(
    "e0",
    ttft_a=0.0,
    ttft_b=1e-5,
    ttft_c=0.01,
    tpot_slope=1e-8,
    tpot_intercept=0.02,
    decode_max_requests=256,
    decode_fit_mape=0.05,
    decode_cv_mape=0.13,
)


def bench(*, engine_auth: str = "boundary", measured_with: str = "boundary") -> Bench:
    engines = [EngineSpec(iid, f"http://{iid}") for iid in ("e0", "e1")]
    config = fleet_config(*engines, serving=serving_settings(max_connections=512))
    nobody = cast(Any, None)
    store = Store("profiles.json", there=True, engine_auth=measured_with)
    return Bench(config, nobody, nobody, store, Extent(), engine_auth, progress=nobody)


def test_a_row_at_its_limits_is_fit() -> None:
    assert faults_of(bench(), ROW) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"decode_fit_mape": 0.0501}, "decode_fit_mape is 0.0501, profiles.max_decode_fit_mape is 0.05"),
        ({"decode_cv_mape": 0.2}, "decode_cv_mape is 0.2000, profiles.max_decode_cv_mape is 0.13"),
        (
            {"decode_max_requests": 255},
            "decode was measured up to 255 requests, its share of serving.max_connections is 256",
        ),
    ],
)
def test_each_fault_has_its_sentence(changes: dict[str, Any], said: str) -> None:
    assert faults_of(bench(), replace(ROW, **changes)) == [said]


def test_an_engine_that_is_pinned_to_prefill_need_not_cover_decodes() -> None:
    pinned = bench()
    first, second = pinned.engines
    engines = (replace(first, role=Role.PREFILL, pin=True), second)
    pinned.config = replace(pinned.config, engines=engines)
    few = replace(ROW, decode_max_requests=4)
    assert faults_of(pinned, few) == []
    assert faults_of(pinned, replace(few, iid="e1")) == [
        "decode was measured up to 4 requests, its share of serving.max_connections is 512"
    ]


def test_every_fault_of_a_row_is_told() -> None:
    bad = replace(ROW, decode_fit_mape=1.0, decode_cv_mape=1.0, decode_max_requests=1)
    assert len(faults_of(bench(engine_auth="engine-credential"), bad)) == 4


def test_the_auth_mode_must_be_the_fleets_where_the_store_tells_one() -> None:
    keyed = bench(engine_auth="engine-credential")
    assert faults_of(keyed, ROW) == [
        "it was measured with engine_auth boundary, the fleet's is engine-credential"
    ]
    assert faults_of(bench(engine_auth="engine-credential", measured_with=""), ROW) == []
