"""Contract, attestation and live engine against each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from narwhal.config.rules import Kind
from narwhal.config.schema import fields_of
from narwhal.model.attestation import Attestation
from narwhal.model.identity import EngineIdentity
from narwhal.policy.identity import unlike
from tests.support.sidecars import CONTRACT as SIDECAR_CONTRACT

LIVE = EngineIdentity("0.32.0", 1795979050.83)
CONTRACT = {"vllm_version": "0.32.0", "kv_heads": 8, "cross_layers_blocks": False, "kv_role": "kv_both"}


def attested(bound: EngineIdentity = LIVE, **changes: Any) -> Attestation:
    contract = {**CONTRACT, **changes}
    return Attestation({name: value for name, value in contract.items() if value is not None}, {}, bound)


def test_what_fits_says_nothing() -> None:
    assert unlike(CONTRACT, attested(), live=LIVE) == ()


def test_a_field_that_the_fleet_leaves_open_may_be_anything() -> None:
    assert unlike(CONTRACT, attested(image_digest="sha256:" + "0" * 64), live=LIVE) == ()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("kv_heads", 4, "kv_heads is 4, the contract wants 8"),
        ("kv_heads", 8.0, "kv_heads is 8.0, the contract wants 8"),
        ("kv_role", "\ud800\n", "kv_role is '\\ud800\\n', the contract wants 'kv_both'"),
        ("kv_heads", None, "kv_heads is not attested, the contract wants 8"),
        ("cross_layers_blocks", True, "cross_layers_blocks is True, the contract wants False"),
        ("cross_layers_blocks", 0, "cross_layers_blocks is 0, the contract wants False"),
        ("kv_role", "kv_producer", "kv_role is 'kv_producer', the contract wants 'kv_both'"),
        ("vllm_version", "0.31.0", "vllm_version is '0.31.0', the contract wants '0.32.0'"),
    ],
)
def test_each_field_is_compared(name: str, value: Any, said: str) -> None:
    assert unlike(CONTRACT, attested(**{name: value}), live=LIVE) == (said,)


WRONG: Mapping[Kind, Any] = {Kind.TEXT: "unlike", Kind.INTEGER: 4_711}


@pytest.mark.parametrize("name", fields_of("engine_contract"))
def test_every_field_that_a_fleet_file_knows_is_compared_and_named(name: str) -> None:
    contract = {**SIDECAR_CONTRACT, "image_digest": "sha256:" + "0" * 64}
    kind = fields_of("engine_contract")[name].kind
    wrong = not contract[name] if kind is Kind.BOOLEAN else WRONG[kind]
    (said,) = unlike(contract, Attestation({**contract, name: wrong}, {}, LIVE), live=LIVE)
    assert said == f"{name} is {wrong!r}, the contract wants {contract[name]!r}"
    rest = {field: value for field, value in contract.items() if field != name}
    (said,) = unlike(contract, Attestation(rest, {}, LIVE), live=LIVE)
    assert said == f"{name} is not attested, the contract wants {contract[name]!r}"


def test_every_difference_is_told() -> None:
    assert len(unlike(CONTRACT, attested(kv_heads=1, kv_role="x"), live=LIVE)) == 2


def test_the_live_version_is_compared_with_both() -> None:
    live = EngineIdentity("0.33.0", LIVE.process_start)
    assert unlike(CONTRACT, attested(), live=live) == (
        "the engine runs vLLM 0.33.0, the contract wants 0.32.0",
        "the engine runs vLLM 0.33.0, attested is 0.32.0",
    )


def test_another_process_start_is_another_process() -> None:
    restarted = EngineIdentity("0.32.0", LIVE.process_start + 0.01)
    assert unlike(CONTRACT, attested(), live=restarted) == (
        "the engine's process started at 1795979050.84, attested is 1795979050.83",
    )
    rounded = EngineIdentity("0.32.0", LIVE.process_start + 5e-7)
    assert unlike(CONTRACT, attested(), live=rounded) == ()
