"""Streaks of failures per engine and class, and what they mean (failures.md sections 2 and 4). Pure.

| class | counts to | verdict at the threshold |
| --- | --- | --- |
| connection | eject_after | EJECT; HOLD and an inference probe if all of them were one request's doing |
| timeout | eject_after | HEALTH, and an inference probe without a hold once that passed |
| overload | eject_after | HEALTH |
| stream, inference_status, kv_handoff | eject_after | HOLD, and an inference probe |
| liveness | liveness_misses | EJECT |

| proof | clears |
| --- | --- |
| ANSWER: a 4xx other than 408 and 429 | connection, inference_status |
| HEALTH: a health check with 200 | connection, timeout, overload, liveness |
| PREFILL: a KV handoff was extracted | connection, inference_status, kv_handoff |
| DECODE: a stream reached its terminal marker | connection, inference_status, stream |
| INFERENCE: both legs of a probe were good | connection, inference_status, kv_handoff, stream |

A streak that stays at or above its threshold gives its verdict again with each further failure. One
request's doing: the last `eject_after` connection failures were of one and the same body, which had reached
the engine each time. What never reached it (refused, DNS, TLS) has no body here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Set
from enum import Enum
from types import MappingProxyType

from narwhal.model.evidence import FailureClass
from narwhal.model.numbers import count


class Verdict(Enum):
    """What a streak at its threshold asks for."""

    EJECT = "eject"
    HOLD = "hold"
    HEALTH = "health"


class Proof(Enum):
    """Kinds of successful answers."""

    ANSWER = "answer"
    HEALTH = "health"
    PREFILL = "prefill"
    DECODE = "decode"
    INFERENCE = "inference"


VERDICTS: Mapping[FailureClass, Verdict] = MappingProxyType(
    {
        FailureClass.CONNECTION: Verdict.EJECT,
        FailureClass.TIMEOUT: Verdict.HEALTH,
        FailureClass.STREAM: Verdict.HOLD,
        FailureClass.OVERLOAD: Verdict.HEALTH,
        FailureClass.INFERENCE_STATUS: Verdict.HOLD,
        FailureClass.KV_HANDOFF: Verdict.HOLD,
        FailureClass.LIVENESS: Verdict.EJECT,
    }
)

_C = FailureClass
CLEARED_BY: Mapping[Proof, frozenset[FailureClass]] = MappingProxyType(
    {
        Proof.ANSWER: frozenset({_C.CONNECTION, _C.INFERENCE_STATUS}),
        Proof.HEALTH: frozenset({_C.CONNECTION, _C.TIMEOUT, _C.OVERLOAD, _C.LIVENESS}),
        Proof.PREFILL: frozenset({_C.CONNECTION, _C.INFERENCE_STATUS, _C.KV_HANDOFF}),
        Proof.DECODE: frozenset({_C.CONNECTION, _C.INFERENCE_STATUS, _C.STREAM}),
        Proof.INFERENCE: frozenset({_C.CONNECTION, _C.INFERENCE_STATUS, _C.KV_HANDOFF, _C.STREAM}),
    }
)


class Breaker:
    """Counts consecutive failures. An engine without a streak has no entry, so good news cost a look-up."""

    __slots__ = ("_begun", "_eject_after", "_lost", "_streaks", "_thresholds")

    def __init__(self, *, eject_after: int, liveness_misses: int) -> None:
        self._eject_after = eject_after
        self._thresholds = dict.fromkeys(FailureClass, eject_after)
        self._thresholds[FailureClass.LIVENESS] = liveness_misses
        self._streaks: dict[str, dict[FailureClass, int]] = {}
        self._begun: Counter[tuple[str, FailureClass]] = Counter()
        """How many streaks of that class the engine has had that are over."""
        self._lost: dict[str, deque[bytes]] = {}
        """Engine ID to the requests behind the newest connection failures of its streak."""

    def failed(self, iid: str, failure: FailureClass, *, request: bytes = b"") -> Verdict | None:
        """Counts one failure; the verdict when the streak is long enough. `request`: the digest of the body
        that the engine had got, empty where it got none or nobody knows."""
        streaks = self._streaks.setdefault(iid, {})
        streaks[failure] = streaks.get(failure, 0) + 1
        if failure is FailureClass.CONNECTION:
            if streaks[failure] == 1:
                self._lost.pop(iid, None)
            self._lost.setdefault(iid, deque(maxlen=self._eject_after)).append(request)
        if streaks[failure] < self._thresholds[failure]:
            return None
        one_requests = failure is FailureClass.CONNECTION and self._is_one_requests(iid)
        return Verdict.HOLD if one_requests else VERDICTS[failure]

    def proved(self, iid: str, proof: Proof) -> frozenset[FailureClass]:
        """Clears what this success clears; the classes that had a streak."""
        streaks = self._streaks.get(iid)
        if streaks is None:
            return frozenset()
        cleared = CLEARED_BY[proof].intersection(streaks)
        for failure in cleared:
            del streaks[failure]
            self._begun[iid, failure] += 1
        if not streaks:
            del self._streaks[iid]
        return cleared

    def _is_one_requests(self, iid: str) -> bool:
        lost = self._lost[iid]
        return len(lost) == self._eject_after > 1 and len(set(lost)) == 1 and bool(lost[0])

    def take_back(self, iid: str, failure: FailureClass) -> None:
        """One failure was not this engine's after all. Without a streak: nothing happens."""
        streaks = self._streaks.get(iid, {})
        if streaks.get(failure, 0) > 1:
            streaks[failure] -= 1
        elif streaks.pop(failure, 0) and not streaks:
            del self._streaks[iid]

    def forget(self, iid: str) -> None:
        """Ends every streak of the engine."""
        self._begun.update((iid, failure) for failure in self._streaks.pop(iid, ()))
        self._lost.pop(iid, None)

    def row(self, iid: str, failure: FailureClass) -> int:
        """Number of the streak to which a failure counts now: what was counted to another one is over."""
        return self._begun[iid, failure]

    def count(self, iid: str, failure: FailureClass) -> int:
        """Failures in a row, 0 without a streak."""
        return self._streaks.get(iid, {}).get(failure, 0)

    def asks(self, iid: str, verdict: Verdict) -> bool:
        """A streak of the engine stands at its threshold and asks for that."""
        streaks = self._streaks.get(iid, {})
        return any(VERDICTS[c] is verdict and n >= self._thresholds[c] for c, n in streaks.items())

    def suspects(self, iid: str) -> bool:
        """The engine has a streak of any class."""
        return iid in self._streaks

    def engines(self) -> Set[str]:
        """Those with a streak of any class."""
        return self._streaks.keys()

    def streaks(self) -> dict[str, dict[str, int]]:
        """Engine ID to class to failures in a row, both sorted; what has none is left out."""
        return {
            iid: {failure.value: times for failure, times in sorted(streaks.items())}
            for iid, streaks in sorted(self._streaks.items())
        }

    def restore(self, streaks: Mapping[str, object], *, engines: Iterable[str]) -> None:
        """Replaces every streak by what a handoff tells; what is no streak of a known class is left out."""
        self._streaks, self._lost = {}, {}
        for iid in engines:
            self._begun.update((iid, failure) for failure in FailureClass)
            told = streaks.get(iid)
            counts = {c: count(told.get(c.value)) for c in FailureClass} if isinstance(told, Mapping) else {}
            known = {c: n for c, n in counts.items() if n}
            if known:
                self._streaks[iid] = known
