"""Gates `reach`, `contract` and `model`: is it there, is it what the fleet wants, does it serve the model."""

from __future__ import annotations

import asyncio

from narwhal.errors import EngineError, IdentityError
from narwhal.measure.gates.bench import Bench, each, words
from narwhal.measure.gates.verdict import FLEET, Finding, failed, passed, skipped
from narwhal.model.plain_text import shown
from narwhal.policy.identity import unlike


async def reach(bench: Bench) -> list[Finding]:
    """`/health` is 200 in time and `/version` tells one. Fills `bench.reached`."""
    return list(await asyncio.gather(*(_reached(bench, spec.iid) for spec in bench.engines)))


async def _reached(bench: Bench, iid: str) -> Finding:
    began = bench.legs.now()
    try:
        await bench.legs.check_health(iid)
        seconds = bench.legs.now() - began
        version = await bench.legs.version(iid)
    except (EngineError, IdentityError) as error:
        return failed(iid, words(error))
    bench.reached.add(iid)
    told = f"vLLM {version}, healthy in {seconds * 1000:.1f} ms"
    return passed(iid, told, measured={"health_s": seconds, "vllm_version": version})


async def contract(bench: Bench) -> list[Finding]:
    """Sidecar, contract and live process agree (engines.md section 2)."""
    if bench.config.contract is None:
        return [skipped(FLEET, "the fleet file has no engine_contract")]
    found = await each(bench, _contracted, engines=[spec.iid for spec in bench.engines], at_once=True)
    return found if bench.config.contract_complete else [*found, passed(FLEET, warning=_INCOMPLETE)]


_INCOMPLETE = "engine_contract is not complete: what it leaves open is compared nowhere"


async def _contracted(bench: Bench, iid: str) -> Finding:
    contract = bench.config.contract or {}
    try:
        attestation = await bench.identities.attestation(iid, timeout_s=bench.timeout_s)
    except EngineError as error:
        return failed(iid, f"the sidecar gives no answer: {words(error)}")
    live = await bench.identities.identity(iid, timeout_s=bench.timeout_s)
    if found := unlike(contract, attestation, live=live):
        return failed(iid, "; ".join(found))
    told = f"{live.words}, {len(contract)} fields as in the contract"
    return passed(iid, told, measured={"attestation_digest": attestation.digest})


async def model(bench: Bench) -> list[Finding]:
    """`/v1/models` lists the fleet's model."""
    found = await each(bench, _serves, engines=[spec.iid for spec in bench.engines], at_once=True)
    lengths = {finding.measured["max_model_len"] for finding in found if "max_model_len" in finding.measured}
    if len(lengths) < 2:
        return found
    warning = f"engines have different max_model_len: {', '.join(map(str, sorted(lengths)))}"
    return [*found, passed(FLEET, warning=warning)]


async def _serves(bench: Bench, iid: str) -> Finding:
    wanted, models = bench.config.model, await bench.legs.models(iid)
    if wanted not in models:
        told = shown(", ".join(sorted(models))) or "nothing"
        return failed(iid, f"serves {told}, the fleet's model is {wanted}")
    length = models[wanted]
    if length is None:
        return passed(iid, f"serves {wanted}", warning="it tells no max_model_len")
    return passed(iid, f"serves {wanted}, {length} tokens", measured={"max_model_len": length})
