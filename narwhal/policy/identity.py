"""Is this live process the one that its sidecar attests, and is that what the fleet wants? Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from narwhal.model.attestation import Attestation
from narwhal.model.identity import EngineIdentity


def unlike(contract: Mapping[str, Any], attestation: Attestation, *, live: EngineIdentity) -> tuple[str, ...]:
    """One sentence for each thing that does not fit; empty: the engine is what the contract wants.

    `contract` has the fields that the fleet sets (never empty: it has a version), `live` is what the
    engine itself told **after** the attestation was fetched: a start that is still the attested one then
    proves that the attested process was alive when it was attested.
    """
    bound = attestation.identity
    wanted = contract.get("vllm_version")
    found = [*_fields(contract, attestation.contract)]
    if live.vllm_version != wanted:
        found.append(f"the engine runs vLLM {live.vllm_version}, the contract wants {wanted}")
    if live.vllm_version != bound.vllm_version:
        found.append(f"the engine runs vLLM {live.vllm_version}, attested is {bound.vllm_version}")
    if not live.started_with(bound):
        found.append(
            f"the engine's process started at {live.process_start!r}, attested is {bound.process_start!r}"
        )
    return tuple(found)


def _fields(wanted: Mapping[str, Any], attested: Mapping[str, Any]) -> list[str]:
    """The contract's fields in its order; what the fleet leaves open may be anything."""
    found = []
    for name, value in wanted.items():
        if name not in attested:
            found.append(f"{name} is not attested, the contract wants {value!r}")
        elif not _same(value, attested[name]):
            found.append(f"{name} is {attested[name]!r:.80}, the contract wants {value!r}")
    return found


def _same(wanted: Any, attested: Any) -> bool:
    """In JSON true is not 1, and 8.0 is no integer."""
    return type(wanted) is type(attested) and bool(wanted == attested)
