"""Stage `liveness`: every engine asked for its health beside the pass, through the control pool.

| who is asked | when | what the answer is |
| --- | --- | --- |
| every engine | every `recovery.liveness_every` passes, 0 = never | evidence: the sweep |
| its process | after a good sweep; a contracted engine's whole identity instead | evidence |
| every engine | under an epoch: every pass, and first thing in a takeover | none: it taught the epoch |

An answer that only taught an epoch is no evidence, so that a router in a cluster judges as one alone does.
It takes every engine and every pass: a restarted engine has forgotten the epoch, and until it hears of it
again a superseded owner could place work there. One that stays up has nothing to hear, but nobody knows
which one that is before it was asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from narwhal.errors import EngineError, IdentityError
from narwhal.model.evidence import LivenessSwept, ProbeOutcome, ProcessSeen
from narwhal.model.identity import METRICS_PATH, read_process_start
from narwhal.monitor.beside import Beside
from narwhal.monitor.probe_legs import ProbeLegs, judged
from narwhal.monitor.prober import Streaming
from narwhal.policy.liveness import SweepCadence
from narwhal.ports import EvidenceSink

log = logging.getLogger("narwhal.monitor")

_HEALTH, _PROCESS = "health", "process"


class HealthChecks:
    """Asks engines, one question of a kind an engine at a time. Main loop only; waits in `aclose` alone."""

    def __init__(
        self, legs: ProbeLegs, *, sink: EvidenceSink, streaming: Streaming, contracted: bool = False
    ) -> None:
        """`contracted`: a good sweep is followed by a look at the whole identity, which policy asks for
        (`narwhal.policy.identification`); the process is not asked for here."""
        self._legs = legs
        self._contracted = contracted
        self._sink = sink
        self._streaming = streaming
        self._beside: Beside[tuple[str, str]] = Beside()
        self._swept: set[str] = set()
        """Engines whose next answer counts."""

    @property
    def busy(self) -> bool:
        """A question is under way."""
        return bool(self._beside)

    def ask(self, engines: Iterable[str]) -> None:
        """Begins to ask these engines, those with a question under way aside."""
        for iid in engines:
            self._beside.begin((_HEALTH, iid), partial(self._check, iid))

    def sweep(self, engines: Iterable[str]) -> None:
        """As `ask`; the answers are evidence, also those under way."""
        engines = tuple(engines)
        self._swept.update(engines)
        self.ask(engines)

    def introduce(self, engines: Iterable[str]) -> None:
        """Begins to ask all of these engines anew.

        For a new epoch: a question under way may have been sent without it.
        """
        self.abandon()
        self.ask(engines)

    def take_in(self) -> None:
        """Raises what a question ended with if that was not the engine's doing."""
        self._beside.take_in()

    def abandon(self) -> None:
        """Ends every question unsaid."""
        self._swept.clear()
        self._beside.abandon()

    async def aclose(self) -> None:
        await self._beside.aclose()

    async def _check(self, iid: str) -> None:
        shown = await judged(self._legs.health(iid), iid)
        if iid not in self._swept:
            return
        self._swept.discard(iid)
        streaming = shown.outcome is ProbeOutcome.BAD and self._streaming(iid)
        if shown.outcome is ProbeOutcome.GOOD and not self._contracted:
            self._beside.begin((_PROCESS, iid), partial(self._identify, iid))
        self._sink.report(LivenessSwept(iid, shown.outcome, shown.detail, streaming))

    async def _identify(self, iid: str) -> None:
        """Tells which process answers. One that does not say it is no failure: nobody owes it here."""
        try:
            start = read_process_start(await self._legs.ask(iid, METRICS_PATH))
        except (EngineError, IdentityError) as error:
            log.debug("%s does not tell its process start: %s", iid, error)
            return
        self._sink.report(ProcessSeen(iid, start))


class LivenessStage:
    """`everyone()`: this router has an epoch to teach. `engines`: the IDs of all."""

    name = "liveness"
    needs_control = True

    def __init__(
        self, checks: HealthChecks, *, engines: Iterable[str], every: int, everyone: Callable[[], bool]
    ) -> None:
        """`every`: passes from sweep to sweep, 0 = no sweeps (`recovery.liveness_every`)."""
        self._checks = checks
        self._engines = tuple(engines)
        self._cadence = SweepCadence(every)
        self._everyone = everyone

    async def run(self, now: float) -> None:
        # First who is due: a bug in one question keeps no engine from the next.
        if self._cadence.next_pass():
            self._checks.sweep(self._engines)
        elif self._everyone():
            self._checks.ask(self._engines)
        self._checks.take_in()

    def begin_anew(self) -> None:
        """Another ownership begins: its first sweep comes after a whole cadence."""
        self._cadence.begin_anew()

    async def aclose(self) -> None:
        await self._checks.aclose()
