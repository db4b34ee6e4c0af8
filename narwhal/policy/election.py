"""The lease machine: one router's part in deciding who owns the fleet (cluster.md sections 2 and 5).

Pure: `now` (the router's own monotonic clock) and all randomness are handed in. The shell asks `tick`,
then `next` for the one thing to do, does it, and hands the reply to `answered` (None = no answer). At most
one store call is in flight. T, R, M, P and o are those of `LeaseTimings`.

| from | to | because |
| --- | --- | --- |
| starting | standby | the store answered |
| standby | candidate | the watched version may be taken; our turn among the standbys is awaited |
| candidate | standby | the record changed or the store is silent |
| candidate | acquiring | our turn: compare-and-set on the version that was watched |
| acquiring | restoring | granted, and the reply came before D |
| acquiring | standby | refused; or unconfirmed, released and to be tried again after a pause |
| restoring | owner | the first fenced write is through |
| owner | suspect | a renewal got no answer |
| suspect | owner | a later renewal did |
| suspect | suspect | fail-safe mode: all other voters pledged, D moves |
| restoring, owner, suspect | fenced | D passed, LOST, or an order to fence |
| restoring, owner, suspect | standby | the store or an engine knows a higher epoch: acquire again above it |
| restoring, owner, suspect | draining | clean shutdown or yield: admission is closed |
| draining | released | given back, lost, or not confirmed within T |
| fenced | standby | release sent in the background; watching again, under a new token only |
| released | standby | who yielded competes again after 1 s |
| starting, standby, candidate, released | stopped | told to stop and nothing is held |

Rules that directed tests pin down: D counts from before the send of the confirmed attempt, after AGAIN from
before the *first* send; a reply at or after D is discarded; every renewal attempt has a higher seq; STALE is
no answer; a renewal passes the life of the last reply confirmed before D; the watch takes the greatest TTL.
"""

from __future__ import annotations

from narwhal.errors import InvariantViolation
from narwhal.model.control import RouterState
from narwhal.model.handover import PledgeAnswer, PledgeQuestion
from narwhal.model.leadership import Remembered
from narwhal.model.lease import Acquired, BadFloor, HeldBy, LeaseView, Lost, Reinstated, Renewed
from narwhal.policy.candidacy import ElectionSettings
from narwhal.policy.intents import (
    Acquire,
    Alarm,
    AskPledges,
    Claim,
    Effect,
    Extended,
    Fenced,
    Granted,
    Inputs,
    Intent,
    Peek,
    Pledged,
    Release,
    Renew,
    Reply,
    Rest,
    Stop,
)
from narwhal.policy.phases import HOLDING, OWNING
from narwhal.policy.pledge import Rounds
from narwhal.policy.tenant import Tenant
from narwhal.policy.tenure import Tenure


class Election(Tenant):
    """The machine. Attributes are for reading only."""

    def __init__(self, settings: ElectionSettings, remembered: Remembered, *, now: float) -> None:
        super().__init__(settings, remembered, now=now)
        self._rounds = Rounds(settings.router_id, settings.voters)
        self._pending: Intent | None = None
        self._called: Intent | None = None
        self._stopping = False

    def tick(self, now: float) -> tuple[Effect, ...]:
        """Notes the passing of D. Call it before `next`."""
        if self.tenure and self.phase in HOLDING and now >= self.tenure.deadline:
            return self._fence("lease deadline passed")
        return ()

    def next(self, now: float, inputs: Inputs) -> Intent:
        """The one thing to do. A store call stays pending until `answered`; its send is not before `now`."""
        if self._pending is not None:
            raise InvariantViolation(f"{type(self._pending).__name__} is unanswered")
        intent = self._decide(now, inputs)
        self._pending = None if isinstance(intent, Rest | Stop) else intent
        return intent

    def again(self, now: float, *, main_alive: bool) -> Intent | None:
        """The next attempt of a call that got no answer; None: it is not wanted (now)."""
        tenure = self.tenure
        if tenure is None:
            return None
        if tenure.ending is not None:
            self._pending = tenure.ending
        elif self.phase is RouterState.ACQUIRING and not self._stopping:
            tenure.sent = now
            self._pending = tenure.call
        elif main_alive and self._renewable(now):
            suspect = self.phase is RouterState.SUSPECT
            self._pending = (self._rounds.next(tenure, now) if suspect else None) or tenure.renewal(now)
        return self._pending

    def gave_up(self, now: float) -> tuple[Effect, ...]:
        """The attempts of an acquire, renewal or release are used up without an answer."""
        if isinstance(self._called, Release):
            return self._let_go(now, confirmed=False)
        if self.tenure is not None and self.tenure.ending is None and self.phase is RouterState.ACQUIRING:
            self.tenure.end("unconfirmed")
        return ()

    def _decide(self, now: float, inputs: Inputs) -> Intent:
        if self.tenure is not None:
            return self.tenure.ending or self.tenure.hold(now, main_alive=inputs.main_alive)
        if self.phase is RouterState.FENCED or (self.phase is RouterState.RELEASED and not self._stopping):
            self._move(RouterState.STANDBY)
        if self._stopping:
            self.candidacy.begin(now)  # out of the queue: who has stopped does not compete
            self._move(RouterState.STOPPED)
            return Stop()
        return self._stand_by(now, inputs)

    def _stand_by(self, now: float, inputs: Inputs) -> Intent:
        intent = self.candidacy.next(now, inputs)
        if self.phase is RouterState.STARTING:
            return intent
        if isinstance(intent, Acquire):
            self._fresh(intent.token)
            self._move(RouterState.CANDIDATE)
            self._move(RouterState.ACQUIRING)
            self.tenure = Tenure(intent, self.timings, now, now, self.candidacy.reclaim)
            return intent
        self._move(RouterState.CANDIDATE if self.candidacy.queueing else RouterState.STANDBY)
        return intent

    def _renewable(self, now: float) -> bool:
        return self.phase in OWNING and self.tenure is not None and now < self.tenure.retry_until

    # --- replies ---------------------------------------------------------------------------------

    def answered(self, reply: Reply | None, now: float) -> tuple[Effect, ...]:
        """The reply to the pending call, read at `now`; None: no answer (it may still happen later)."""
        self._called, self._pending = self._pending, None
        match self._called:
            case Peek():
                return self._peeked(reply, now)
            case Claim():
                self.candidacy.claimed(now)
                return ()
            case Acquire():
                return self._acquired(reply, now)
            case Renew():
                return self._renewed(reply, now)
            case Release():
                return self._let_go(now, confirmed=reply is True) if reply is not None else ()
            case AskPledges():
                return self._pledged(now) if isinstance(reply, Pledged) else self.tick(now)
            case _:
                raise InvariantViolation(f"an answer ({type(reply).__name__}) without a call")

    def _peeked(self, reply: Reply | None, now: float) -> tuple[Effect, ...]:
        if not isinstance(reply, LeaseView):
            self.candidacy.silent(now, starting=self.phase is RouterState.STARTING)
            return ()
        self.candidacy.peeked(reply, now)
        if self.phase is RouterState.STARTING:
            self._move(RouterState.STANDBY)
        return ()

    def _acquired(self, reply: Reply | None, now: float) -> tuple[Effect, ...]:
        tenure = self.tenure
        if tenure is None or reply is None:
            return ()
        if not isinstance(reply, Acquired):
            return self._refused(reply, now)
        floor = tenure.call.floor
        self.candidacy.learn(reply.epoch)
        if reply.epoch <= floor:
            tenure.end("epoch not above the floor")
            return (Alarm(f"the store granted epoch {reply.epoch}, not above the floor {floor}"),)
        tenure.grant(reply)
        if self._stopping or not tenure.usable(now, pledged_until=self.candidacy.pledge.until):
            tenure.end("stopped" if self._stopping else "confirmed too late")
            return ()
        self._move(RouterState.RESTORING)
        self.candidacy.confirmed()
        return (Granted(tenure.token, tenure.epoch, tenure.deadline),)

    def _refused(self, reply: Reply, now: float) -> tuple[Effect, ...]:
        reclaims = self.tenure.reclaims if self.tenure else None
        self._forget()
        self._move(RouterState.STANDBY)
        self.candidacy.learn(reply.epoch if isinstance(reply, HeldBy) else 0)
        if isinstance(reply, BadFloor):
            self.candidacy.begin(now, after_s=self.timings.ttl_s)
            return (Alarm(f"the store refuses the epoch floor {self.candidacy.known}"),)
        self.candidacy.begin(now, reclaim=reclaims)
        return ()

    def _renewed(self, reply: Reply | None, now: float) -> tuple[Effect, ...]:
        tenure = self.tenure
        if tenure is None or self.phase not in OWNING:
            return ()
        if now >= tenure.deadline:
            return self.tick(now)
        if isinstance(reply, Lost):
            self.candidacy.learn(reply.epoch)
            return self._lost(reply, now)
        if not isinstance(reply, Renewed | Reinstated):
            if self.phase is RouterState.OWNER:
                self._move(RouterState.SUSPECT)
            return ()
        tenure.extend(reply.life)
        if self.phase is RouterState.SUSPECT:
            self._move(RouterState.OWNER)
        claims = reply.claims if isinstance(reply, Renewed) else {}
        return (Extended(tenure.token, tenure.deadline, isinstance(reply, Reinstated), claims),)

    def _pledged(self, now: float) -> tuple[Effect, ...]:
        tenure = self.tenure
        if tenure is None or self.phase is not RouterState.SUSPECT or now >= tenure.deadline:
            return self.tick(now)
        tenure.pledged(self._rounds.asked_at)
        return (Extended(tenure.token, tenure.deadline),)

    def _lost(self, reply: Lost, now: float) -> tuple[Effect, ...]:
        if self.phase is RouterState.DRAINING:
            return self._let_go(now, confirmed=False)
        effects = self._fence(f"lease lost to {reply.owner or 'nobody'} at epoch {reply.epoch}")
        return effects + self._let_go(now, confirmed=False)

    def pledge(self, question: PledgeQuestion, now: float) -> PledgeAnswer:
        """Another voter asks that we do not acquire; `now` is after its question came."""
        refusal = "this router owns the fleet" if self.phase in OWNING else ""
        if self.tenure is not None:
            refusal = refusal or "an acquire of this router is unresolved"
        return self.candidacy.pledged(question, now, refusal=refusal)

    # --- commands --------------------------------------------------------------------------------

    def opened(self, token: str) -> None:
        """The first fenced write of `token` is through; ignored if it is no longer ours."""
        if self._holds(token) and self.phase is RouterState.RESTORING:
            self._move(RouterState.OWNER)

    def fence(self, token: str, why: str) -> tuple[Effect, ...]:
        """Ends `token` at once: a script said LOST, an engine refused its epoch, restoring failed."""
        return self._fence(why) if self._holds(token) else ()

    def supersede(self, token: str, floor: int, *, why: str, now: float) -> tuple[Effect, ...]:
        """The higher epoch `floor` is known elsewhere: acquire above it, with a new token."""
        self.candidacy.learn(floor)
        if self.tenure is None or not self._holds(token):
            return ()
        reclaim = self.tenure.reclaim()
        self._forget()
        self._move(RouterState.STANDBY)
        return (Fenced(token, why), *self.candidacy.overruled(why, reclaim=reclaim, now=now))

    def drain(self, token: str) -> None:
        """Admission is closed: go on renewing until told to release."""
        if self._holds(token):
            self._move(RouterState.DRAINING)

    def release(self, reason: str, *, successor: str = "", now: float) -> None:
        """Gives a drained lease back; attempts go on for T at most."""
        if self.phase is RouterState.DRAINING and self.tenure is not None:
            self.tenure.end(reason, successor=successor, until=now + self.timings.ttl_s)

    def stop(self, *, now: float) -> None:
        """Ends the machine; a lease that is still held is given back first."""
        self._stopping = True
        if self.phase in HOLDING:
            self._move(RouterState.DRAINING)
            self.release("stopped", now=now)

    def check_invariants(self) -> None:
        """Raises InvariantViolation if the machine contradicts itself."""
        if broken := [name for name, holds in _truths(self) if not holds]:
            raise InvariantViolation(f"lease machine in {self.phase}: not true that {'; '.join(broken)}")


def _truths(machine: Election) -> list[tuple[str, bool]]:
    tenure, phase = machine.tenure, machine.phase
    busy = phase in HOLDING or phase in {RouterState.ACQUIRING, RouterState.DRAINING}
    truths = [
        (
            "a tenure exactly while something may be held",
            (tenure is not None) == busy or phase is RouterState.FENCED,
        ),
        ("only a candidate queues", not machine.candidacy.queueing or phase is RouterState.CANDIDATE),
    ]
    if tenure is not None:
        truths += [
            (
                "D is at most T - M after the last send",
                tenure.deadline <= max(tenure.sent, tenure.asked) + tenure.term_s,
            ),
            ("the floor covers the own epoch", tenure.epoch <= machine.candidacy.known),
            ("a held lease has an epoch and a D", phase is RouterState.ACQUIRING or tenure.epoch > 0),
        ]
    return truths
