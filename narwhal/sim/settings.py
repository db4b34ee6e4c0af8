"""What one simulated engine is told at its start."""

from __future__ import annotations

from dataclasses import dataclass

from narwhal.model.engine import EngineProfile


@dataclass(frozen=True, slots=True)
class SimSettings:
    """Behaviour of one engine. Durations are seconds.

    `profile` (when given) replaces `prefill_s` and `interval_s`, and prefills then run one after the
    other as on a real device; the flat figures are plain delays. `recompute` is vLLM's load failure
    policy: a KV transfer that fails is computed again instead of failing the request.
    `natural_length` is where a request that names no token limit stops by itself.
    `unmet_peer_s` is how long a handshake with a dead, never met producer takes to fail.
    """

    name: str = "e0"
    model: str = "simulated"
    max_model_len: int = 32768
    prefill_s: float = 0.02
    interval_s: float = 0.02
    profile: EngineProfile | None = None
    kv_lease_s: float = 30.0
    kv_blocks: int = 65536
    block_tokens: int = 32
    max_num_seqs: int = 4096
    recompute: bool = False
    natural_length: int = 64
    unmet_peer_s: float = 5.0
    api_key: str = ""
    version: str = "0.32.0"
    recorded_requests: int = 64
