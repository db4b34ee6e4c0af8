"""The KV descriptor as recorded from vLLM 0.32.0 with NixlConnector (engines.md section 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Side:
    """Where an engine's KV side channel answers, and as whom."""

    engine_id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class RemoteKv:
    """A readable descriptor: which blocks of which producer a decode leg pulls."""

    side: Side
    request_id: str
    blocks: tuple[int, ...]


def descriptor(side: Side, request_id: str, *, blocks: Sequence[int], tokens: int) -> dict[str, Any]:
    """What a finished prefill answers as `kv_transfer_params`."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(blocks)],
        "remote_engine_id": side.engine_id,
        "remote_request_id": request_id,
        "remote_host": side.host,
        "remote_port": side.port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 0,
    }


def read_descriptor(params: Mapping[str, Any]) -> RemoteKv | None:
    """The pull that a decode leg asks for; None for what kills a real decode engine."""
    texts = (params.get("remote_engine_id"), params.get("remote_request_id"), params.get("remote_host"))
    port, blocks = params.get("remote_port"), _flat(params.get("remote_block_ids"))
    if not all(isinstance(text, str) and text for text in texts) or not blocks:
        return None
    if isinstance(port, bool) or not isinstance(port, int):
        return None
    engine_id, request_id, host = (str(text) for text in texts)
    return RemoteKv(Side(engine_id, host, port), request_id, blocks)


def _flat(groups: Any) -> tuple[int, ...]:
    """Block IDs of a flat list or a list of lists; empty when they are anything else."""
    if not isinstance(groups, list):
        return ()
    flat: list[Any] = []
    for group in groups:
        flat.extend(group if isinstance(group, list) else (group,))
    well_formed = all(isinstance(block, int) and not isinstance(block, bool) and block >= 0 for block in flat)
    return tuple(flat) if well_formed else ()


def _without(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda good: {name: value for name, value in good.items() if name != key}


def _with(key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda good: {**good, key: value}


_SPOILERS: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "null": lambda good: None,
    "not_object": lambda good: "pulled",
    "no_host": _without("remote_host"),
    "no_port": _without("remote_port"),
    "no_request_id": _without("remote_request_id"),
    "no_engine_id": _without("remote_engine_id"),
    "text_port": lambda good: {**good, "remote_port": str(good["remote_port"])},
    "null_blocks": _with("remote_block_ids", None),
    "empty_blocks": _with("remote_block_ids", [[]]),
    "few_blocks": lambda good: {**good, "remote_block_ids": [good["remote_block_ids"][0][:-1]]},
    "negative_block": _with("remote_block_ids", [[-1]]),
    "text_block": _with("remote_block_ids", [["6"]]),
    "not_remote_prefill": _with("do_remote_prefill", False),
    "unknown_engine": _with("remote_engine_id", "00000000-0000-4000-8000-000000000000"),
    "dead_port": _with("remote_port", 1),
}


def spoil(good: dict[str, Any], variant: str) -> dict[str, Any]:
    """The part of a prefill answer that carries the descriptor, spoilt as ordered."""
    if variant == "missing":
        return {}
    return {"kv_transfer_params": _SPOILERS[variant](good)}
