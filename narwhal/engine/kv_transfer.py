"""KV connectors by name: what a prefill leg asks for and which descriptors may reach a decode engine.

`nixl`: NixlConnector as recorded from vLLM 0.32.0. Required of a descriptor are the keys that all builds
since 0.9 send; everything else in it is opaque and travels on unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from narwhal.errors import HandoffInvalid
from narwhal.ports import KvDescriptor


class Connector(Protocol):
    """One way for engines to hand KV blocks to each other."""

    name: str

    def prefill_params(self) -> Mapping[str, Any]:
        """`kv_transfer_params` of the prefill leg."""

    def descriptor(self, params: object, iid: str) -> KvDescriptor:
        """Raises HandoffInvalid naming the key at fault: such a descriptor can kill a decode engine."""


class Nixl:
    """vLLM's NixlConnector (kv_both)."""

    name = "nixl"
    _ASK: Mapping[str, Any] = MappingProxyType(
        {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        }
    )

    def prefill_params(self) -> Mapping[str, Any]:
        return self._ASK

    def descriptor(self, params: object, iid: str) -> KvDescriptor:
        if not isinstance(params, Mapping):
            raise HandoffInvalid("no kv_transfer_params object in the prefill answer", iid=iid)
        for fault in _faults(params):
            raise HandoffInvalid(f"kv_transfer_params.{fault}", iid=iid)
        return KvDescriptor(producer=params["remote_engine_id"], params=params)


def _faults(params: Mapping[str, Any]) -> list[str]:
    faults = []
    if params.get("do_remote_prefill") is not True:
        faults.append("do_remote_prefill is not true")
    for key in ("remote_engine_id", "remote_request_id", "remote_host"):
        value = params.get(key)
        if not isinstance(value, str) or not value:
            faults.append(f"{key} is not a nonempty string")
    if not _is_integer(params.get("remote_port")):
        faults.append("remote_port is not an integer")
    if not _are_block_ids(params.get("remote_block_ids")):
        faults.append("remote_block_ids is no nonempty list of block IDs")
    return faults


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_block_ids(value: object) -> bool:
    """A flat list, or one list per KV cache group, of nonnegative integers; none of them empty."""
    if not isinstance(value, list) or not value:
        return False
    groups = value if all(isinstance(group, list) for group in value) else [value]
    return all(group and all(_is_integer(block) and block >= 0 for block in group) for group in groups)


CONNECTORS: Mapping[str, type[Nixl]] = MappingProxyType({Nixl.name: Nixl})
"""By the name that `engine.connector` gives."""
