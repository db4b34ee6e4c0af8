"""Claims: how a standby gets a degraded owner to yield, and how that never becomes a habit (cluster.md 5, 6).

Pure. A claim never overrides a lease that is being renewed: the owner itself decides to yield. It does only
while it is *degraded*: its monitoring is, or it is *unheard* (no poll of any live standby for 2 T).

After a yield by claim there is a truce: nobody claims or yields by claim for a while, for a cause that all
routers share must not pass ownership round. A cause that is provably the owner's own does not wait for its
end, once a router (docs/adr/0022):

| truce | the owner is degraded by | the claimant yielded by claim since it began | claims |
| --- | --- | --- | --- |
| no | anything | - | yes |
| yes | what others may share | - | no |
| yes | its own checkpoint, which the claimant can write | no | yes |
| yes | its own checkpoint, which the claimant can write | yes | no: it would go round after all |
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf

from narwhal.model.handover import PeerReady

CLAIM_REASON = "claim"
"""The reason in the record and in the log of a lease that was released because of a claim."""
REPEAT_S = 2.0
TRUCE_S = 60.0
LONGEST_TRUCE_S = 600.0
UNHEARD_TTLS = 2
OWN_CAUSES = frozenset(
    f"monitoring degraded: handoff {kind.__name__}"
    for kind in vars(builtins).values()
    if isinstance(kind, type) and issubclass(kind, OSError)
)
"""The reasons of an owner that cannot write its checkpoint: no other stage depends on what only its own host
has. A disk that all routers share is no exception: whose own writes fail claims nothing."""


def is_own(degraded: str) -> bool:
    """The owner is degraded for a cause of its own host's."""
    return degraded in OWN_CAUSES


class Truce:
    """Nobody claims or yields by claim for 60 s after a yield by claim, doubling to 10 min.

    Begins at 60 s again when there was none for 10 min after the last one's end.
    """

    def __init__(self) -> None:
        self.until = -inf
        self._length_s = TRUCE_S
        self._epoch = 0
        self._yielded = False
        """We have yielded by claim since it began."""

    def began(self, epoch: int, now: float, *, by_us: bool = False) -> None:
        """The lease of `epoch` was released by a claim, `by_us` by this router. Hearing of it again changes
        nothing."""
        if epoch <= self._epoch:
            return
        self._yielded = by_us or (self._yielded and self.holds(now))
        if now > self.until + LONGEST_TRUCE_S:
            self._length_s = TRUCE_S
        self._epoch, self.until = epoch, now + self._length_s
        self._length_s = min(2 * self._length_s, LONGEST_TRUCE_S)

    def holds(self, now: float) -> bool:
        return now < self.until

    def silences(self, degraded: str, now: float) -> bool:
        """This router claims nothing now from an owner that is `degraded`."""
        return self.holds(now) and (self._yielded or not is_own(degraded))


class Suspicion:
    """The standby's side: polls of the owner's /ready without `control_ready`, in a row."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._epoch = 0
        self._misses = 0
        self.reason = ""
        """What the owner said last, or that it gives no answer."""

    def polled(self, epoch: int, told: PeerReady | None) -> None:
        """One poll of the owner of `epoch`; None: no answer."""
        if epoch != self._epoch:
            self._epoch, self._misses = epoch, 0
        if told is not None and told.control_ready:
            self._misses, self.reason = 0, ""
        else:
            self._misses += 1
            self.reason = "no answer" if told is None else told.reason

    def forget(self) -> None:
        self._misses, self.reason = 0, ""

    @property
    def suspects(self) -> bool:
        return self._misses >= self._limit


class Hearing:
    """The owner's side: who has polled it. Bounded by the live standbys."""

    def __init__(self, *, ttl_s: float) -> None:
        self._limit_s = UNHEARD_TTLS * ttl_s
        self._polls: dict[str, float] = {}

    def heard(self, router_id: str, now: float, *, known: Collection[str]) -> None:
        """A poll of /ready that names its router. Names that nobody knows are not kept."""
        if router_id in known:
            self._polls = {one: at for one, at in self._polls.items() if one in known} | {router_id: now}

    def unheard(self, standbys: Collection[str], now: float, *, since: float) -> bool:
        """There are live standbys and none has polled for 2 T. `since`: they are known and we own."""
        if not standbys:
            return False
        last = max((self._polls.get(one, -inf) for one in standbys), default=-inf)
        return now - max(last, since) > self._limit_s


@dataclass(frozen=True, slots=True)
class Bench:
    """How the owner stands when it judges claims. `degraded`: why it is, "" if it is not. `fit`: routers
    that live and are ready to take over."""

    epoch: int
    degraded: str
    fit: Collection[str]
    truce: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """`successor`: whom to yield to, "" for nobody. `ignored`: claimant -> why."""

    successor: str = ""
    ignored: Mapping[str, str] | None = None


def judge(claims: Mapping[str, str], bench: Bench) -> Verdict:
    """`claims`: router ID -> its claim as JSON text. The first valid one in the order of IDs decides."""
    ignored: dict[str, str] = {}
    for claimant in sorted(claims):
        why = _objection(claimant, claims[claimant], bench=bench)
        if not why:
            return Verdict(claimant, ignored)
        ignored[claimant] = why
    return Verdict("", ignored)


def _objection(claimant: str, text: str, *, bench: Bench) -> str:
    if _epoch_of(text) != bench.epoch:
        return "it is for another epoch"
    if claimant not in bench.fit:
        return "the claimant is not known to live and to be ready"
    if not bench.degraded:
        return "this owner is not degraded"
    rests = bench.truce and not is_own(bench.degraded)
    return "a lease was released by a claim not long ago" if rests else ""


def _epoch_of(text: str) -> int:
    """-1 for what is no claim."""
    try:
        epoch = json.loads(text)["epoch"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return -1
    return epoch if type(epoch) is int else -1
