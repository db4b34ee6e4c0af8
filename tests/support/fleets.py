"""Fleet documents as dictionaries, for tests that write or change fleet files."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

_MINIMAL: dict[str, Any] = {
    "schema": "narwhal.fleet",
    "schema_version": 1,
    "model": "tiny",
    "slo": {"ttft_s": 1.0, "tpot_s": 0.05},
    "engines": [
        {"iid": "e0", "url": "http://127.0.0.1:8100", "role": "prefill"},
        {"iid": "e1", "url": "http://127.0.0.1:8101", "role": "decode"},
        {"iid": "e2", "url": "http://127.0.0.1:8102"},
    ],
}

COMPLETE_CONTRACT: dict[str, Any] = {
    "vllm_version": "0.32.0",
    "nixl_version": "0.9.0",
    "nixl_connector_version": 2,
    "model_architecture": "LlamaForCausalLM",
    "model_dtype": "bfloat16",
    "kv_heads": 8,
    "head_size": 128,
    "hidden_layers": 32,
    "attention_backend": "FLASH_ATTN",
    "kv_cache_dtype": "auto",
    "cross_layers_blocks": False,
    "hybrid_kv_cache_manager": False,
    "kv_role": "kv_both",
    "transfer_mode": "pull",
    "speculative_config": "none",
}


def fleet_document(**changes: Any) -> dict[str, Any]:
    """The smallest document with three engines. `changes` set dotted paths (`serving__max_attempts=2`)."""
    document = copy.deepcopy(_MINIMAL)
    for path, value in changes.items():
        put(document, path.replace("__", "."), value)
    return document


def put(document: dict[str, Any], path: str, value: Any) -> None:
    """Sets `path` (`engines[1].url`, `recovery.health.window_s`), making sections on the way."""
    *holders, last = path.replace("[", ".[").split(".")
    here: Any = document
    for name in holders:
        here = here[int(name[1:-1])] if name.startswith("[") else here.setdefault(name, {})
    if last.startswith("["):
        here[int(last[1:-1])] = value
    else:
        here[last] = value


def contracted(**changes: Any) -> dict[str, Any]:
    """As `fleet_document`, with a complete contract and attestation URLs."""
    document = fleet_document(engine_contract=dict(COMPLETE_CONTRACT))
    for engine in document["engines"]:
        engine["attestation_url"] = engine["url"].replace(":81", ":91") + "/v1/attestation"
    for path, value in changes.items():
        put(document, path.replace("__", "."), value)
    return document


def write_fleet(folder: Path, document: Any, name: str = "fleet.json") -> str:
    path = folder / name
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)
