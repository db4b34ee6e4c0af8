"""Gates `produce` and `consume`: KV handoffs, and the edges they cross.

What a decode engine says over handed KV must be what the producer says by itself: KV that arrives wrong
shows in nothing else. The prompt is new and the consumer has never computed it, so its own prefix cache
cannot stand in for the transfer.
"""

from __future__ import annotations

from narwhal.errors import EngineError
from narwhal.measure.gates.bench import ANSWER_TOKENS, NOT_REACHED, Bench, Pace, each, words
from narwhal.measure.gates.edges import Edge, edges_of
from narwhal.measure.gates.pace import unsteady
from narwhal.measure.gates.verdict import FLEET, Finding, failed, passed, skipped

_LEFT_OUT = "--no-kv"


async def produce(bench: Bench) -> list[Finding]:
    """A prefill leg answers with a KV handoff that may be sent on."""
    if not bench.extent.kv:
        return [skipped(FLEET, _LEFT_OUT)]
    producers = list(dict.fromkeys(one for one, _ in edges_of(bench.engines, ring=bench.extent.ring)))
    if not producers:
        return [skipped(FLEET, "no engine has another one to hand KV to")]
    return await each(bench, _produced, engines=producers, at_once=False)


async def _produced(bench: Bench, iid: str) -> Finding:
    kv, seconds = await bench.legs.produce(iid, bench.prompt(), tokens=ANSWER_TOKENS)
    host, port = kv.params.get("remote_host"), kv.params.get("remote_port")
    told = f"a handoff at {host}:{port} in {seconds * 1000:.1f} ms"
    return passed(iid, told, measured={"prefill_s": seconds})


async def consume(bench: Bench) -> list[Finding]:
    """A decode leg over handed KV ends well and says what the producer says by itself."""
    if not bench.extent.kv:
        return [skipped(FLEET, _LEFT_OUT)]
    edges = edges_of(bench.engines, ring=bench.extent.ring)
    if not edges:
        return [skipped(FLEET, "no engine has another one to hand KV to")]
    findings = []
    for number, edge in enumerate(edges, 1):
        findings.append(await _edge(bench, edge))
        bench.progress(number, len(edges))
    return findings


async def _edge(bench: Bench, edge: Edge) -> Finding:
    name = " -> ".join(edge)
    if away := [iid for iid in edge if iid not in bench.reached]:
        return skipped(name, f"{', '.join(away)} {NOT_REACHED}")
    for _ in range(bench.extent.repeats):
        try:
            fault = await _crossed(bench, edge, name=name)
        except EngineError as error:
            bench.met(error)
            return failed(name, f"{error.iid}: {words(error)}")
        if fault:
            return failed(name, fault)
    last = bench.paces[name][-1]
    first = f"{last.ttft_s * 1000:.1f} ms to the first token"
    return passed(name, f"{bench.extent.repeats} right answers, {first}")


async def _crossed(bench: Bench, edge: Edge, *, name: str) -> str:
    """What was wrong with one request over the edge; "" when nothing was."""
    producer, consumer = edge
    prompt = bench.prompt()
    kv, prefill_s = await bench.legs.produce(producer, prompt, tokens=ANSWER_TOKENS)
    speech = await bench.legs.speak(consumer, prompt, tokens=ANSWER_TOKENS, kv=kv)
    if fault := unsteady(speech):
        return fault
    expected = await bench.legs.speak(producer, prompt, tokens=ANSWER_TOKENS)
    if speech.text != expected.text:
        said, wanted = speech.text[:60], expected.text[:60]
        return f"over handed KV {consumer} says {said!r}, {producer} itself {wanted!r}"
    bench.paces[name].append(Pace(prefill_s + speech.first_s, speech.interval_s or 0.0))
    return ""
