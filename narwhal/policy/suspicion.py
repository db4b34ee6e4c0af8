"""What is held against engines until something disproves it, and what probes of theirs must know. Pure.

| evidence | does |
| --- | --- |
| a decode leg failed, maybe for its KV | the engine's probe is to cross its producer, "" = a local decode |
| a leg or a token count timed out | no leg has been heard of since |
| a leg went well | a leg has been heard of |
| a health check was good after timeouts | half a word, unless a leg has been heard of since |
| the last streak of an engine ends | its producers are forgotten |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from narwhal.model.engine import Leg
from narwhal.model.evidence import CountFailed, FailureClass, LegFailed
from narwhal.policy.breaker import Breaker, Proof, Verdict
from narwhal.policy.edges import is_about_transfer

_PROOF = {Leg.PREFILL: Proof.PREFILL, Leg.DECODE: Proof.DECODE}


class Suspicion:
    """`breaker` is for reading; an engine without a streak has nothing here, so good news cost a look-up."""

    def __init__(self, breaker: Breaker) -> None:
        self.breaker = breaker
        self._producers: dict[str, dict[str, None]] = {}
        self._unheard: set[str] = set()

    def failed(self, evidence: LegFailed) -> Verdict | None:
        """A leg; None: its streak asks for nothing, or its request's token count was counted already."""
        if evidence.leg is Leg.DECODE and is_about_transfer(evidence.failure, evidence.way):
            self._producers.setdefault(evidence.iid, {})[evidence.peer] = None
        return None if evidence.again else self.counted(evidence)

    def counted(self, evidence: LegFailed | CountFailed) -> Verdict | None:
        iid, failure = evidence.iid, evidence.failure
        if failure is FailureClass.TIMEOUT:
            self._unheard.add(iid)
        return self.breaker.failed(iid, failure, request=evidence.request)

    def succeeded(self, iid: str, leg: Leg) -> None:
        if self.breaker.suspects(iid):
            self._unheard.discard(iid)
            self.proved(iid, _PROOF[leg])

    def healthy(self, iid: str) -> bool:
        """A health check was good. True: after timeouts that no leg has disproved, it is half a word."""
        follow = FailureClass.TIMEOUT in self.proved(iid, Proof.HEALTH) and iid in self._unheard
        self._unheard.discard(iid)
        return follow

    def proved(self, iid: str, proof: Proof) -> frozenset[FailureClass]:
        """Classes whose streaks this ended."""
        cleared = self.breaker.proved(iid, proof)
        if not self.breaker.suspects(iid):
            self._producers.pop(iid, None)
        return cleared

    def producers(self, iid: str) -> tuple[str, ...]:
        """Whose transfers failed there while it had a streak, "" = a local decode."""
        return tuple(self._producers.get(iid, ()))

    def crossed_well(self, iid: str) -> None:
        """Its inference probe was good."""
        self.proved(iid, Proof.INFERENCE)
        self._producers.pop(iid, None)

    def pardon(self, iid: str, failure: FailureClass, *, times: int, row: int) -> None:
        """So many failures of that `row` were not its own."""
        if row != self.breaker.row(iid, failure):
            return
        for _ in range(times):
            self.breaker.take_back(iid, failure)
        if times > 0 and not self.breaker.suspects(iid):
            self.forget(iid)

    def forget(self, iid: str) -> None:
        self.breaker.forget(iid)
        self._producers.pop(iid, None)
        self._unheard.discard(iid)

    def restore(self, streaks: Mapping[str, object], *, engines: Iterable[str]) -> None:
        """Replaces everything by the streaks that a handoff tells."""
        self.breaker.restore(streaks, engines=engines)
        self._producers.clear()
        told = self.breaker.streaks().items()
        self._unheard = {iid for iid, classes in told if FailureClass.TIMEOUT in classes}
