"""A fleet file to begin with: `narwhal-check --print-example-config > fleet.json`."""

from __future__ import annotations

from typing import Any, Final

from narwhal.config.schema import SCHEMA, SCHEMA_VERSION

_SIDECAR: Final = "/v1/attestation"

EXAMPLE: Final[dict[str, Any]] = {
    "_about": "Keys that begin with _ are annotations. The rest has defaults: narwhal config show.",
    "schema": SCHEMA,
    "schema_version": SCHEMA_VERSION,
    "model": "Qwen/Qwen3-8B",
    "engines": [
        {
            "iid": f"{role[0]}{number}",
            "url": f"http://10.0.0.{host}:8000",
            "role": role,
            "attestation_url": f"http://10.0.0.{host}:8010{_SIDECAR}",
        }
        for host, (role, number) in enumerate(
            (("prefill", 0), ("prefill", 1), ("decode", 0), ("decode", 1)), start=1
        )
    ],
    "slo": {"ttft_s": 1.0, "tpot_s": 0.05},
    "serving": {"admission": "open", "max_connections": 512},
    "profiles": {"path": "runs/profiles.json"},
    "_engine_contract": "What every engine must be; without it leave out the attestation_urls too.",
    "engine_contract": {
        "vllm_version": "0.32.0",
        "nixl_version": "1.5.1",
        "nixl_connector_version": 14,
        "model_architecture": "Qwen3ForCausalLM",
        "model_dtype": "bfloat16",
        "kv_heads": 8,
        "head_size": 128,
        "hidden_layers": 36,
        "attention_backend": "FLASH_ATTN",
        "kv_cache_dtype": "auto",
        "cross_layers_blocks": False,
        "hybrid_kv_cache_manager": False,
        "kv_role": "kv_both",
        "transfer_mode": "pull",
        "speculative_config": "none",
    },
}
