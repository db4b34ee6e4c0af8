"""Rules of the cluster broken on purpose, one at a time: what watches the rules must notice each of them.

Production code has no switches for this. A `Break` replaces attributes of production classes while it is
applied; breaks that only need another lease machine name a subclass of it, which real processes can run too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

from narwhal.cluster.flush import TotalsFlusher
from narwhal.cluster.gate import LeasedGate
from narwhal.model.leadership import Remembered
from narwhal.model.lease import LeaseState, LeaseView
from narwhal.model.request import Counters
from narwhal.model.settings import LeaseTimings
from narwhal.monitor.maintenance import Maintenance
from narwhal.policy import death
from narwhal.policy.candidacy import Candidacy, ElectionSettings
from narwhal.policy.claims import Truce, is_own
from narwhal.policy.death import ProcessMark, ProcessSight, Signalled
from narwhal.policy.election import Election
from narwhal.policy.intents import Effect, Inputs, Renew, Reply
from narwhal.policy.tenure import Reclaim, Tenure
from narwhal.policy.watch import Watch
from narwhal.store import memory_scripts
from narwhal.store.memory_scripts import Call, Data, Word
from narwhal.store.quorum import Quorum

# --- lease machines with a rule broken -------------------------------------------------------------


class DeadlineFromReply(Election):
    """D counts from the reply instead of from before the send."""

    def _renewed(self, reply: Reply | None, now: float) -> tuple[Effect, ...]:
        if self.tenure is not None and reply is not None:
            self.tenure.sent = now
        return super()._renewed(reply, now)


class AgainFromRetry(Election):
    """After AGAIN, D counts from the send of the attempt that was answered."""

    def _acquired(self, reply: Reply | None, now: float) -> tuple[Effect, ...]:
        if self.tenure is not None:
            self.tenure.first_sent = self.tenure.sent
        return super()._acquired(reply, now)


class _Candidacy(Election):
    """With a watch of the subclass's choice."""

    watch: type[Watch] = Watch

    def __init__(self, settings: ElectionSettings, remembered: Remembered, *, now: float) -> None:
        super().__init__(settings, remembered, now=now)
        self.candidacy = Candidacy(settings, remembered, now=now)
        self.candidacy.watch = self.watch(
            ttl_s=settings.timings.ttl_s, ttl_s_max=remembered.ttl_ms_max / 1000
        )


class _ServerTimeWatch(Watch):
    """As a key with a TTL: what the server's clock says has expired may be taken."""

    def see(self, view: LeaseView, now: float) -> None:
        super().see(view, now)
        if view.state is LeaseState.HELD and view.now_ms - view.renewed_ms > view.ttl_ms:
            self.since = now - self.span_s


class TtlInsteadOfObservation(_Candidacy):
    watch = _ServerTimeWatch


class _TrustingWatch(Watch):
    """Every released record counts as surely released."""

    def see(self, view: LeaseView, now: float) -> None:
        super().see(view, now)
        self.sure = view.state is LeaseState.RELEASED


class ShortcutAlways(_Candidacy):
    watch = _TrustingWatch


class _UnsureWatch(Watch):
    """Every record released under the present incarnation counts as surely released."""

    def see(self, view: LeaseView, now: float) -> None:
        super().see(view, now)
        self.sure = view.state is LeaseState.RELEASED and view.record_inc == str(view.inc)


class ShortcutWithoutSure(_Candidacy):
    watch = _UnsureWatch


class _OwnTtlWatch(Watch):
    """Only the own TTL counts, whatever the holder wrote."""

    def see(self, view: LeaseView, now: float) -> None:
        own = self.span_s
        super().see(view, now)
        self.span_s = own


class OwnTtlOnly(_Candidacy):
    watch = _OwnTtlWatch


class _HalfWatch(Watch):
    """Half the span is enough."""

    @property
    def ripe_at(self) -> float | None:
        whole = super().ripe_at
        return None if whole is None else whole - 0.5 * self.span_s


class HalfTheWatch(_Candidacy):
    watch = _HalfWatch


class _OneServerWatch(Watch):
    """Believes that there is one server that never restarts: its incarnation is not looked at."""

    def see(self, view: LeaseView, now: float) -> None:
        if self.version is not None:
            self.inc = str(view.inc)
        super().see(view, now)


class NoIncarnation(_Candidacy):
    watch = _OneServerWatch


BROKEN: dict[str, type[Election]] = {
    machine.__name__: machine
    for machine in (
        *(DeadlineFromReply, AgainFromRetry, TtlInsteadOfObservation),
        *(ShortcutAlways, ShortcutWithoutSure, OwnTtlOnly, HalfTheWatch, NoIncarnation),
    )
}


# --- everything else is replaced where it stands ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Break:
    """`changes`: (class, module or dictionary, name, replacement). `margin_s`: M of every router."""

    election: type[Election] = Election
    changes: tuple[tuple[Any, str, Any], ...] = ()
    margin_s: float = LeaseTimings().safety_margin_s

    @contextmanager
    def applied(self) -> Iterator[None]:
        before = [(place, name, _get(place, name)) for place, name, _ in self.changes]
        try:
            for place, name, replacement in self.changes:
                _set(place, name, replacement)
            yield
        finally:
            for place, name, value in before:
                _set(place, name, value)


def _get(place: Any, name: str) -> Any:
    return place[name] if isinstance(place, dict) else getattr(place, name)


def _set(place: Any, name: str, value: Any) -> None:
    if isinstance(place, dict):
        place[name] = value
    else:
        setattr(place, name, value)


def script(name: str, replacement: Callable[[Data, Call], list[Word]]) -> tuple[Any, str, Any]:
    """A script of the in-memory server with its rule broken."""
    return (memory_scripts.SCRIPTS, name, replacement)


_renew = memory_scripts.lease_renew
_claim = memory_scripts.lease_claim
_acquire = memory_scripts.lease_acquire


def _renew_any_seq(data: Data, call: Call) -> list[Word]:
    """Writes whatever seq comes, also one below the stored one."""
    seq = int(call.args[2])
    if data.holds(call.args[0], call.args[1]) and seq <= int(data.lease["seq"]):
        data.lease["seq"] = str(seq - 1)
    return _renew(data, call)


def _renew_same_seq(data: Data, call: Call) -> list[Word]:
    """A repeated attempt under the same seq is answered as if it had just been written."""
    lease, seq = data.lease, call.args[2]
    if data.holds(call.args[0], call.args[1]) and seq == lease["seq"]:
        return ["OK", lease["life"], lease["replicas"]]
    return _renew(data, call)


def _same_seq(tenure: Tenure, now: float) -> Renew:
    """A retry repeats the seq of the attempt that got no answer."""
    answered = tenure.deadline == tenure.sent + tenure.term_s
    tenure.seq += 1 if answered else 0
    tenure.sent = now
    tenure.renew_at = now + tenure.timings.renew_interval_s
    return Renew(tenure.token, tenure.epoch, tenure.seq, tenure.life)


def _claim_as_released(data: Data, call: Call) -> list[Word]:
    """Nothing stored may be taken at once: what a marker that nobody has to watch amounts to."""
    fresh = not data.lease
    reply = _claim(data, call)
    if fresh:
        data.lease |= {"state": "released", "sure": "1"}
    return reply


def _acquire_anywhere(data: Data, call: Call) -> list[Word]:
    """Whatever server it is: the incarnation is not compared."""
    args = list(call.args)
    args[2] = call.inc
    return _acquire(data, Call(call.keys, args, *_rest(call)))


def _rest(call: Call) -> tuple[Any, ...]:
    return (call.run_id, call.replid, call.role, call.replicas, call.now_ms)


async def _flush_deltas(flusher: TotalsFlusher, timeout_s: float = 0.8) -> None:
    """Sends what was counted since the last flush that was answered."""
    totals, handoffs = flusher._totals, flusher._handoffs
    flusher._counted.clear()
    own, sent = totals.own, getattr(flusher, "deltas_sent", Counters())
    fresh = Counters(**{name: getattr(own, name) - getattr(sent, name) for name in Counters.__slots__})
    runs = await handoffs.flush_totals({totals._run: fresh}, timeout_s=timeout_s)
    flusher.deltas_sent = own  # type: ignore[attr-defined]
    totals.merge({run: counters for run, counters in runs.items() if run != totals._run})


def _add_deltas(data: Data, call: Call) -> list[Word]:
    for run, told in zip(call.args[::2], call.args[1::2], strict=True):
        kept: dict[str, int] = json.loads(data.totals.get(run, "{}"))
        for name, count in json.loads(told).items():
            kept[name] = kept.get(name, 0) + count
        data.totals[run] = json.dumps(kept)
    return ["OK", *(word for pair in data.totals.items() for word in pair)]


_turn_at = Candidacy._turn_at


def _fresh_only(candidacy: Candidacy, now: float, inputs: Inputs) -> float:
    """Without a current mirror nothing is acquired."""
    if not inputs.ready_to_take:
        candidacy.queueing = False
        return float("inf")
    return _turn_at(candidacy, now, inputs)


async def _stored_later(maintenance: Maintenance) -> str:
    """What was done goes with the next snapshot, which is soon."""
    return ""


def _silent_for_shared_causes(truce: Truce, degraded: str, now: float) -> bool:
    """Who has yielded by claim may claim in the same truce."""
    return truce.holds(now) and not is_own(degraded)


def _always_alive(gate: LeasedGate, token: str) -> bool:
    return True


def _no_wait(quorum: Quorum, reply: object) -> int:
    return 0


def _forgetting(real: Callable[[Data, Call], list[Word]]) -> Callable[[Data, Call], list[Word]]:
    """The replica count is what is connected now."""

    def forgetful(data: Data, call: Call) -> list[Word]:
        args = list(call.args)
        args[5] = "0"
        if data.lease:
            data.lease["replicas"] = "0"
        return real(data, Call(call.keys, args, *_rest(call)))

    return forgetful


def _saw_last(quorum: Quorum, replicas: int) -> None:
    quorum._highest = replicas


class _BoundlessReclaim(Reclaim):
    """What was our record once is ours for ever, wherever it is seen."""

    __slots__ = ()

    def covers(self, view: LeaseView) -> bool:
        return view.version is None or view.version.token == self.token


def _reclaim_for_ever(tenure: Tenure) -> Reclaim:
    return _BoundlessReclaim(tenure.token, "", until=inf)


_proves_death = death.proves_death


def _reading(*deadly: Callable[[ProcessSight], bool]) -> Callable[..., bool]:
    """Takes more sights for death than it may."""

    def proves(theirs: ProcessMark, ours: ProcessMark, *, look: Callable[[int], ProcessSight]) -> bool:
        return any(sign(look(theirs.pid)) for sign in deadly) or _proves_death(theirs, ours, look=look)

    return proves


def _misread(sign: Callable[[ProcessSight], bool]) -> Break:
    return Break(changes=((death, "proves_death", _reading(sign)),))


BREAKS: Mapping[str, Break] = {
    **{name: Break(machine) for name, machine in BROKEN.items()},
    "NoIncarnation": Break(NoIncarnation, (script("lease_acquire", _acquire_anywhere),)),
    "SameSeqOnRetry": Break(changes=((Tenure, "renewal", _same_seq), script("lease_renew", _renew_same_seq))),
    "NoStale": Break(changes=(script("lease_renew", _renew_any_seq),)),
    "NoMarker": Break(changes=(script("lease_claim", _claim_as_released),)),
    "DeltaCounters": Break(
        changes=((TotalsFlusher, "flush", _flush_deltas), script("totals_flush", _add_deltas))
    ),
    "MirrorMustBeFresh": Break(changes=((Candidacy, "_turn_at", _fresh_only),)),
    "FencedStillSends": Break(changes=((LeasedGate, "alive", _always_alive),)),
    "MarginZero": Break(margin_s=0.0),
    "NoWait": Break(changes=((Quorum, "needed_after", _no_wait),)),
    "ConnectedReplicasOnly": Break(
        changes=(
            (Quorum, "saw", _saw_last),
            script("lease_renew", _forgetting(_renew)),
            script("lease_acquire", _forgetting(_acquire)),
        )
    ),
    "ReclaimsForEver": Break(changes=((Tenure, "reclaim", _reclaim_for_ever),)),
    "NoTruce": Break(changes=((Truce, "holds", lambda truce, now: False),)),
    "AnswersBeforeStored": Break(changes=((Maintenance, "_store", _stored_later),)),
    "ClaimsBackInTruce": Break(changes=((Truce, "silences", _silent_for_shared_causes),)),
    "EpermIsDeath": _misread(lambda sight: sight.signalled is Signalled.FORBIDDEN),
    "ZombieIsDeath": _misread(lambda sight: sight.state == "Z"),
    "UnreadableIsDeath": _misread(lambda sight: sight.signalled is Signalled.REACHED and not sight.start),
}
