"""engine/kv_transfer.py: an invalid descriptor never reaches an engine, a valid one travels whole."""

from __future__ import annotations

from typing import Any

import pytest

from narwhal.engine.kv_transfer import CONNECTORS, Nixl
from narwhal.errors import HandoffInvalid

RECORDED: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[6, 7, 8, 9, 10, 11]],
    "remote_engine_id": "f5548589-4b70-42cd-b4a1-da695f6e6df3",
    "remote_request_id": "cmpl-rid-0-862da6b6",
    "remote_host": "127.0.0.1",
    "remote_port": 18751,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 166,
    "remote_blocks_expiry_time": None,
    "transfer_mode": "pull",
    "remote_prefill_cached_tokens": 0,
}


def test_a_recorded_descriptor_is_taken_with_every_key() -> None:
    descriptor = Nixl().descriptor(RECORDED, "p0")
    assert descriptor.params == RECORDED
    assert descriptor.producer == RECORDED["remote_engine_id"]


@pytest.mark.parametrize("ids", [[1], [0, 5], [[1], [2, 3]]])
def test_block_ids_are_a_list_or_one_list_a_group(ids: list[Any]) -> None:
    assert Nixl().descriptor(RECORDED | {"remote_block_ids": ids}, "p0")


@pytest.mark.parametrize("params", [None, [], "x", 1, {}])
def test_what_is_no_descriptor_is_refused(params: object) -> None:
    with pytest.raises(HandoffInvalid) as caught:
        Nixl().descriptor(params, "p0")
    assert caught.value.iid == "p0"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("do_remote_prefill", False),
        ("do_remote_prefill", 1),
        ("remote_engine_id", ""),
        ("remote_engine_id", None),
        ("remote_request_id", None),
        ("remote_request_id", ""),
        ("remote_host", ""),
        ("remote_host", 4),
        ("remote_port", "18751"),
        ("remote_port", True),
        ("remote_port", 1.5),
        ("remote_port", None),
        ("remote_port", 0),
        ("remote_port", -1),
        ("remote_port", 65536),
        ("remote_block_ids", None),
        ("remote_block_ids", []),
        ("remote_block_ids", [[]]),
        ("remote_block_ids", [[1], []]),
        ("remote_block_ids", [1, [2]]),
        ("remote_block_ids", [-1]),
        ("remote_block_ids", [True]),
        ("remote_block_ids", ["1"]),
        ("remote_block_ids", {"0": [1]}),
    ],
)
def test_each_required_key_is_checked_and_named(key: str, value: object) -> None:
    with pytest.raises(HandoffInvalid, match=key):
        Nixl().descriptor(RECORDED | {key: value}, "p0")


@pytest.mark.parametrize("key", [key for key in RECORDED if key.startswith("remote_")][:5])
def test_a_missing_key_is_named(key: str) -> None:
    without = {name: value for name, value in RECORDED.items() if name != key}
    with pytest.raises(HandoffInvalid, match=key):
        Nixl().descriptor(without, "p0")


def test_a_prefill_leg_asks_for_a_remote_decode() -> None:
    assert Nixl().prefill_params() == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }


def test_connectors_are_known_by_name() -> None:
    assert CONNECTORS["nixl"] is Nixl
