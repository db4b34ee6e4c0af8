"""Gates `pace`, `tokenize` and `slo`: how fast an engine speaks, how it counts, what a client would see."""

from __future__ import annotations

from statistics import median

from narwhal.measure.gates.bench import ANSWER_TOKENS, Bench, Pace, each
from narwhal.measure.gates.edges import edges_of
from narwhal.measure.gates.verdict import FLEET, Finding, failed, passed, skipped
from narwhal.measure.legs import Speech


async def pace(bench: Bench) -> list[Finding]:
    """A streamed answer that the engine computes alone: token by token, as fast as its profile says."""
    return await each(bench, _paced, engines=[spec.iid for spec in bench.engines], at_once=False)


async def _paced(bench: Bench, iid: str) -> Finding:
    alone = not bench.extent.kv or not edges_of(bench.engines, ring=bench.extent.ring)
    intervals = []
    for _ in range(bench.extent.repeats):
        await bench.legs.forget(iid)
        speech = await bench.legs.speak(iid, bench.prompt(), tokens=ANSWER_TOKENS)
        if fault := unsteady(speech):
            return failed(iid, fault)
        intervals.append((speech.interval_s or 0.0, speech))
        if alone:
            bench.paces[iid].append(Pace(speech.first_s, speech.interval_s or 0.0))
    interval_s = median(seconds for seconds, _ in intervals)
    predicted_s = _predicted_s(bench, iid, speech=intervals[-1][1])
    told = f"{interval_s * 1000:.2f} ms a token"
    if predicted_s is None:
        return passed(iid, told, measured={"interval_s": interval_s})
    band = bench.config.recovery.health.drift_band
    told = f"{told}, its profile says {predicted_s * 1000:.2f} ms"
    measured = {"interval_s": interval_s, "predicted_s": predicted_s}
    if interval_s > band * predicted_s:
        return failed(iid, f"{told}: over {band:g} times (recovery.health.drift_band)", measured=measured)
    return passed(iid, told, measured=measured)


def unsteady(speech: Speech) -> str:
    """Why an answer was no token-by-token stream; "" when it was."""
    if speech.tokens != ANSWER_TOKENS:
        return f"{speech.tokens} tokens came, {ANSWER_TOKENS} were asked for"
    if not speech.interval_s:
        return "all tokens came at once: something between here and the engine buffers its stream"
    return ""


def _predicted_s(bench: Bench, iid: str, *, speech: Speech) -> float | None:
    row = bench.store.profiles.get(iid)
    if row is None:
        return None
    resident = (speech.prompt_tokens or 0) + speech.tokens
    return row.tpot_slope * resident + row.tpot_request_slope + row.tpot_intercept


async def tokenize(bench: Bench) -> list[Finding]:
    """`/tokenize` counts a prompt as the engine itself does when it computes it."""
    if not bench.config.engine.tokenize:
        return [skipped(FLEET, "engine.tokenize is false")]
    return await each(bench, _counted, engines=[spec.iid for spec in bench.engines], at_once=True)


async def _counted(bench: Bench, iid: str) -> Finding:
    prompt = bench.prompt()
    began = bench.legs.now()
    counted = await bench.legs.count(iid, prompt)
    seconds = bench.legs.now() - began
    computed, _ = await bench.legs.once(iid, prompt)
    if counted != computed:
        return failed(iid, f"/tokenize counts {counted} tokens, the engine computes {computed}")
    limit_s = bench.config.engine.tokenize_timeout_s
    if seconds > limit_s:
        return failed(iid, f"took {seconds:.2f} s, engine.tokenize_timeout_s is {limit_s:g}")
    return passed(iid, f"{counted} tokens in {seconds * 1000:.1f} ms", measured={"tokenize_s": seconds})


async def slo(bench: Bench) -> list[Finding]:
    """Medians of what `consume` (without KV: `pace`) has measured, against the targets.

    Asks nobody. Without KV, and in a fleet without an edge, each engine stands for itself.
    """
    if not bench.paces:
        return [skipped(FLEET, "no request went through: nothing was measured")]
    return [_against_targets(bench, subject, paces=paces) for subject, paces in bench.paces.items()]


def _against_targets(bench: Bench, subject: str, *, paces: list[Pace]) -> Finding:
    ttft_s = median(pace.ttft_s for pace in paces)
    tpot_s = median(pace.tpot_s for pace in paces)
    targets = bench.config.slo
    faults = [
        f"{name} {seconds * 1000:.1f} ms, slo.{name} is {target * 1000:g} ms"
        for name, seconds, target in (("ttft_s", ttft_s, targets.ttft_s), ("tpot_s", tpot_s, targets.tpot_s))
        if seconds > target
    ]
    measured = {"ttft_s": ttft_s, "tpot_s": tpot_s}
    if faults:
        return failed(subject, "; ".join(faults), measured=measured)
    told = f"{ttft_s * 1000:.1f} ms to the first token, {tpot_s * 1000:.2f} ms each"
    return passed(subject, told, measured=measured)
