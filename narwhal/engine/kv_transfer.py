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

_NAMES = ("remote_engine_id", "remote_request_id", "remote_host")


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
        if not isinstance(params, dict):
            raise HandoffInvalid("no kv_transfer_params object in the prefill answer", iid=iid)
        fault = _fault(params)
        if fault:
            raise HandoffInvalid(f"kv_transfer_params.{fault}", iid=iid)
        return KvDescriptor(producer=params["remote_engine_id"], params=params)


def _fault(params: Mapping[str, Any]) -> str:
    """The first thing that is wrong, "" when nothing is."""
    if params.get("do_remote_prefill") is not True:
        return "do_remote_prefill is not true"
    for key in _NAMES:
        value = params.get(key)
        if not isinstance(value, str) or not value:
            return f"{key} is not a nonempty string"
    port = params.get("remote_port")
    if type(port) is not int or not 0 < port < 65536:
        return "remote_port is not a port number"
    if not _are_block_ids(params.get("remote_block_ids")):
        return "remote_block_ids is no nonempty list of block IDs"
    return ""


def _are_block_ids(value: object) -> bool:
    """A flat list, or one list per KV cache group, of nonnegative integers; none of them empty.

    Long prompts have thousands: types are compared as a set, which also refuses booleans.
    """
    if not isinstance(value, list) or not value:
        return False
    for blocks in value if isinstance(value[0], list) else (value,):
        if type(blocks) is not list or set(map(type, blocks)) != {int} or min(blocks) < 0:
            return False
    return True


CONNECTORS: Mapping[str, type[Nixl]] = MappingProxyType({Nixl.name: Nixl})
"""By the name that `engine.connector` gives."""
