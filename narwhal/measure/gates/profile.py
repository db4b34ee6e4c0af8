"""Gate `profile`: each engine's row is good enough, covers what it will get, and is of this engine."""

from __future__ import annotations

from narwhal.errors import EngineError
from narwhal.measure.digest import generation_digest
from narwhal.measure.gates.bench import Bench
from narwhal.measure.gates.verdict import FLEET, Finding, Verdict, failed, skipped
from narwhal.measure.plan import decode_share, may_decode
from narwhal.model.engine import EngineProfile


async def profile(bench: Bench) -> list[Finding]:
    """Rows of engines that were not reached are judged too: the store is a file."""
    store = bench.store
    if store.problems:
        return [failed(FLEET, problem) for problem in store.problems]
    if not store.there:
        return [skipped(FLEET, f"{store.path}: no profile store; placement goes by resident work")]
    return [await _judged(bench, spec.iid) for spec in bench.engines]


async def _judged(bench: Bench, iid: str) -> Finding:
    row = bench.store.profiles.get(iid)
    if row is None:
        return failed(iid, f"{bench.store.path} has no row for it: narwhal-profile --only {iid}")
    measured = {"decode_fit_mape": row.decode_fit_mape, "decode_cv_mape": row.decode_cv_mape}
    if faults := faults_of(bench, row):
        return failed(iid, "; ".join(faults), measured=measured)
    detail = f"fit error {row.decode_fit_mape:.1%}, cross-validated {row.decode_cv_mape:.1%}"
    return Finding(iid, Verdict.PASSED, detail, await _warning(bench, row), measured)


def faults_of(bench: Bench, row: EngineProfile) -> list[str]:
    """What makes a row unfit, each with what was measured and its limit."""
    limits = bench.config.profiles
    decodes = any(spec.iid == row.iid and may_decode(spec) for spec in bench.engines)
    share = decode_share(bench.config.serving.max_connections, bench.engines) if decodes else 0
    faults = []
    for name in ("decode_fit_mape", "decode_cv_mape"):
        error, limit = getattr(row, name), getattr(limits, f"max_{name}")
        if error > limit:
            faults.append(f"{name} is {error:.4f}, profiles.max_{name} is {limit:g}")
    if row.decode_max_requests < share:
        faults.append(
            f"decode was measured up to {row.decode_max_requests} requests, its share of "
            f"serving.max_connections is {share}"
        )
    auth = bench.store.engine_auth
    if auth not in ("", bench.engine_auth):
        faults.append(f"it was measured with engine_auth {auth}, the fleet's is {bench.engine_auth}")
    return faults


async def _warning(bench: Bench, row: EngineProfile) -> str:
    """A digest that changed never refuses a start: another GPU may say other words and cost the same."""
    if row.generation_digest is None or row.iid not in bench.reached:
        return ""
    try:
        live = await generation_digest(bench.legs, row.iid)
    except EngineError as error:
        return f"its generation digest could not be compared: {error}"
    if live == row.generation_digest:
        return ""
    return "it generates another text than when it was measured (generation_digest): measure it again"
