"""Probes: looks at one engine or one edge, beside everything else, and says what they showed.

| probe | sends | good | bad | inconclusive |
| --- | --- | --- | --- | --- |
| health | `GET /health` | 200 | anything else | ours |
| inference | a prefill leg and a decode leg | both well | the suspect's leg | ours, the producer's leg |
| inference of a producer | the same from it to a consumer | both well | its leg, the pull | ours |
| edge | the same from producer to consumer | both well | the pull | ours, the producer's leg |
| readmission | the checks of failures.md section 7 | all passed | one failed | ours, the peers' legs |
| cohort | KV round its members, then `GET /health` | each one's own | one failed | ours, a partner's legs |
| identity | sidecar, `/version`, `/metrics` | like the contract | unlike; silent | ours, busy with streams |

The pull: the consumer's leg failed and the consumer does well alone; else it is the consumer's own failure,
which an edge probe tells as a bad inference probe of it. A consumer that is busy (408, 429), or that took no
connection for its leg, has pulled nothing, and tells nothing of its partners.
Ours: the control pool had no connection, the probe was cancelled, the engine knows a higher epoch.
At most one probe of a kind runs on an engine; one more that is wanted meanwhile is not begun. Edges are many
to one engine, so their probes take turns at both ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from narwhal.model.effect import ProbeKind, ProbeWanted
from narwhal.model.evidence import (
    EdgeProbed,
    Evidence,
    HealthProbed,
    IdentityOutcome,
    InferenceProbed,
    ProbeOutcome,
    Validated,
)
from narwhal.monitor.beside import Beside
from narwhal.monitor.identity import IdentityLooks
from narwhal.monitor.probe_legs import ProbeLegs, Shown, judged, we_are_cancelled
from narwhal.monitor.turns import Turns
from narwhal.monitor.validation import Validation
from narwhal.policy.faults import BACK_PRESSURE
from narwhal.ports import EvidenceSink

Key = tuple[ProbeKind, str, str]
Streaming = Callable[[str], bool]
"""Open streams of that engine made progress within the last `engine.health_timeout_s`."""


class Prober:
    """Implements monitor.judge.Prober. Main loop only; nothing here waits but `aclose`."""

    def __init__(
        self,
        legs: ProbeLegs,
        validation: Validation,
        *,
        sink: EvidenceSink,
        streaming: Streaming,
        looks: IdentityLooks | None = None,
    ) -> None:
        """`looks`: those of a contracted fleet; nothing asks for an identity in any other."""
        self._legs = legs
        self._streaming = streaming
        self._validation = validation
        self._sink = sink
        self._beside: Beside[Key] = Beside()
        self._turns = Turns()
        self._looks: dict[ProbeKind, Callable[[ProbeWanted], Awaitable[Evidence]]] = {
            ProbeKind.HEALTH: self._health,
            ProbeKind.INFERENCE: self._inference,
            ProbeKind.EDGE: self._edge,
            ProbeKind.READMISSION: self._readmission,
        }
        if looks is not None:
            self._looks[ProbeKind.IDENTITY] = partial(self._identity, looks)

    def wanted(self, probe: ProbeWanted) -> None:
        """Begins the probe soon, unless one of its kind is under way on that engine."""
        key = _key(probe)
        self._beside.begin(key, partial(self._look, key, probe))

    def also(self, kind: ProbeKind, look: Callable[[ProbeWanted], Awaitable[Evidence]]) -> None:
        """Knows how that kind is made from now on."""
        self._looks[kind] = look

    @property
    def busy(self) -> bool:
        """A probe is under way."""
        return bool(self._beside)

    def take_in(self) -> None:
        """Raises what a probe ended with if that was not the engine's doing."""
        self._beside.take_in()

    def abandon(self) -> None:
        """Ends every probe unsaid: what began under another ownership is no evidence in this one."""
        self._beside.abandon()

    async def aclose(self) -> None:
        await self._beside.aclose()

    # --- one probe -------------------------------------------------------------------------------

    async def _look(self, key: Key, probe: ProbeWanted) -> None:
        evidence = await self._looks[probe.kind](probe)
        # Before it is judged: the verdict may want the next probe of the kind at once.
        self._beside.over(key)
        self._sink.report(evidence)

    async def _health(self, probe: ProbeWanted) -> Evidence:
        shown = await judged(self._legs.health(probe.iid), probe.iid)
        streaming = shown.outcome is ProbeOutcome.BAD and self._streaming(probe.iid)
        return HealthProbed(probe.iid, shown.outcome, shown.detail, streaming, number=probe.number)

    async def _inference(self, probe: ProbeWanted) -> Evidence:
        iid, producer = probe.iid, probe.producer
        if probe.consumer:
            shown = await judged(self._legs.produce(iid, probe.consumer), iid)
            return _inference(iid, shown, consumer=probe.consumer, number=probe.number)
        local = not producer or producer == iid
        legs = self._legs.local(iid) if local else self._legs.transfer(producer, iid)
        return _inference(iid, await judged(legs, iid), peer="" if local else producer, number=probe.number)

    async def _identity(self, looks: IdentityLooks, probe: ProbeWanted) -> Evidence:
        seen = await looks.look(probe)
        nothing = seen.outcome is IdentityOutcome.SILENT and seen.process_start is None
        if nothing and self._streaming(probe.iid):
            # It is busy with our own streams: alive, and slow to tell of itself.
            return replace(seen, outcome=IdentityOutcome.INCONCLUSIVE)
        return seen

    async def _edge(self, probe: ProbeWanted) -> Evidence:
        producer, consumer = probe.producer, probe.iid
        async with self._turns.of((producer, consumer)):
            shown = await judged(self._legs.transfer(producer, consumer), consumer)
            outcome = shown.outcome
            if outcome is ProbeOutcome.BAD and not await self._is_the_pull(consumer, shown):
                outcome = ProbeOutcome.INCONCLUSIVE
        return EdgeProbed(producer, consumer, outcome, shown.detail)

    async def _is_the_pull(self, consumer: str, shown: Shown) -> bool:
        """Its leg failed: it had its request and could do it alone. One that took no connection may be down,
        which nobody else might ask for long."""
        if shown.status in BACK_PRESSURE:
            return False
        return await self._does_well_alone(consumer) and shown.reached

    async def _does_well_alone(self, iid: str) -> bool:
        """What fails without any partner is no pair's matter: it is told as the engine's own."""
        shown = await judged(self._legs.complete(iid), iid)
        if shown.outcome is ProbeOutcome.BAD:
            self._sink.report(_inference(iid, shown))
        return shown.outcome is ProbeOutcome.GOOD

    async def _readmission(self, probe: ProbeWanted) -> Evidence:
        try:
            return await self._validation.run(probe.iid)
        except asyncio.CancelledError:
            if we_are_cancelled():
                raise
            return Validated(probe.iid, (), conclusive=False)


def _inference(
    iid: str, shown: Shown, *, peer: str = "", consumer: str = "", number: int = 0
) -> InferenceProbed:
    return InferenceProbed(
        iid,
        shown.outcome,
        peer,
        shown.detail,
        shown.status,
        consumer,
        number,
        reached=shown.reached,
        own_leg=bool(consumer) and shown.outcome is ProbeOutcome.BAD and not shown.pull,
    )


def _key(probe: ProbeWanted) -> Key:
    if probe.kind is ProbeKind.COHORT:
        return (probe.kind, "", "")
    return (probe.kind, probe.iid, probe.producer if probe.kind is ProbeKind.EDGE else "")
