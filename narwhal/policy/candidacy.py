"""The standby's side of the lease machine: peeking, markers, whose turn it is (cluster.md 2, 6, 7).

Pure. It keeps the watch and answers "what next?" until that is an acquire; from there on
`narwhal.policy.election` is in charge. Order among several standbys: the preferred successor at once, the
others 150 ms after their sight of `released`, then by rank of mirror lag, the unready one second later.
The compare-and-set settles what the order does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from narwhal.model.handover import PledgeAnswer, PledgeQuestion
from narwhal.model.leadership import Remembered
from narwhal.model.lease import LeaseState, LeaseVersion, LeaseView
from narwhal.model.settings import LeaseTimings
from narwhal.policy.intents import Acquire, Alarm, Claim, Inputs, Peek, Rest
from narwhal.policy.pledge import GOOD_PEEK_S, Pledge, contradiction
from narwhal.policy.tenure import Reclaim
from narwhal.policy.watch import Watch

UNCONFIRMED_S = 0.5
"""First pause after an unconfirmed acquire; doubles to T."""
PREFERRED_S = 0.15
RANK_S = 0.05
JITTER_S = 0.01
UNREADY_S = 1.0
YIELDED_S = 1.0
"""Who gave the lease away does not race its successor for it."""
OVERRULED_S = 0.5
OVERRULED_QUIET_S = 60.0
"""Who is told of a higher epoch again and again must not race against the other one: the first time is
free, then the pauses double from 0.5 s to T, until there was peace for a minute."""
FIRST_STANDBY_S = 30.0
"""A `--standby` with nothing ever stored may be first after this."""
START_PAUSE_S = (0.25, 2.0)


@dataclass(frozen=True, slots=True)
class ElectionSettings:
    """`prefer_standby`: never the very first owner while anything says that there was one. `voters`: who may
    acquire in fail-safe mode; empty = it is off and everyone may."""

    router_id: str
    timings: LeaseTimings
    prefer_standby: bool = False
    voters: frozenset[str] = frozenset()


class Candidacy:
    """What this router knows of the lease while it does not hold it. Attributes are for reading."""

    def __init__(self, settings: ElectionSettings, remembered: Remembered, *, now: float) -> None:
        self.settings = settings
        self.known = remembered.epoch_floor
        """Highest epoch ever seen: the floor of every acquire."""
        self.watch = Watch(ttl_s=settings.timings.ttl_s, ttl_s_max=remembered.ttl_ms_max / 1000)
        self.pledge = Pledge(settings.router_id, settings.voters, ttl_s=settings.timings.ttl_s)
        self.view: LeaseView | None = None
        self._answered_at = -inf
        self.queueing = False
        """The watched version may be taken; our turn among the standbys is awaited."""
        self._saw_owner = remembered.saw_owner
        self._nothing_since: float | None = None
        self._peek_at = now
        self._nudged = False
        self._fresh = False
        self._heard = False
        self._claim = False
        self.reclaim: Reclaim | None = None
        """An own token whose record may be swapped at sight, as long as that lasts."""
        self._turn: tuple[tuple[object, ...], float] | None = None
        self._preferred: tuple[LeaseVersion | None, float] = (None, -inf)
        """The released version whose preferred successor is awaited, and until when: once."""
        self._not_before = -inf
        self._yielded: int | None = None
        """Epoch of the lease that was given away, while we rest for it."""
        self._pause = UNCONFIRMED_S
        self._overruled_at = -inf
        self._overruled_pause = 0.0
        self._start_pause = START_PAUSE_S[0]
        self._jitter = 0.0

    def learn(self, epoch: int) -> None:
        self.known = max(self.known, epoch)

    def begin(self, now: float, *, after_s: float = 0.0, reclaim: Reclaim | None = None) -> None:
        """Starts to watch anew; no acquire for `after_s`."""
        self.watch.forget()
        self._fresh = self.queueing = False
        self._turn, self.reclaim = None, reclaim
        self._peek_at = now
        self._not_before, self._yielded = now + after_s, None

    def yielded(self, now: float) -> None:
        """The lease was given away: no acquire for a second, or until another has owned it."""
        self.begin(now, after_s=YIELDED_S)
        self._yielded = self.known

    def unconfirmed(self, now: float) -> None:
        """An acquire ended without a confirmed answer: the next one waits 0.5 s, doubling to T."""
        pause, self._pause = self._pause, min(2 * self._pause, self.settings.timings.ttl_s)
        self.begin(now, after_s=pause)

    def overruled(self, why: str, *, reclaim: Reclaim, now: float) -> tuple[Alarm, ...]:
        """Our lease ended because a higher epoch is known: swaps it, later if it is told again."""
        again = now - self._overruled_at < OVERRULED_QUIET_S
        longer = min(max(OVERRULED_S, 2 * self._overruled_pause), self.settings.timings.ttl_s)
        self._overruled_pause, self._overruled_at = longer if again else 0.0, now
        self.begin(now, after_s=self._overruled_pause, reclaim=reclaim)
        return (Alarm(f"{why}, once more within a minute: do two clusters share a name?"),) if again else ()

    def confirmed(self) -> None:
        self._pause = UNCONFIRMED_S

    def nudge(self, now: float) -> None:
        """The log told of a change: peek now instead of at the next interval, and once more after a peek that
        is under way: it may have been answered before the change."""
        self._peek_at, self._nudged = min(self._peek_at, now), True

    # --- what next -------------------------------------------------------------------------------

    def next(self, now: float, inputs: Inputs) -> Rest | Peek | Claim | Acquire:
        self._jitter = inputs.jitter
        if self.reclaim and now >= self.reclaim.until:
            self.reclaim = None
        if self._claim:
            self._claim = False
            return Claim(inputs.nonce, self.known, round(self.watch.span_s * 1000))
        fresh, self._fresh = self._fresh, False
        turn_at = max(self._turn_at(now, inputs), self._not_before, self.pledge.until)
        version = self.watch.version
        if fresh and now >= turn_at and version is not None:
            self._turn, self.queueing = None, False
            return Acquire(inputs.token, version, self.watch.inc, self.known)
        wake = min(self._peek_at, turn_at if self._heard else inf)
        if now < wake:
            return Rest(wake)
        self._nudged = False
        return Peek()

    def _turn_at(self, now: float, inputs: Inputs) -> float:
        """When this router may send its acquire; inf: not foreseeable."""
        ripe_at = now if self.reclaim and self.watch.version else self.watch.ripe_at
        competes = self.pledge.may_acquire and inputs.may_compete and inputs.main_alive
        blocked = not (competes and self._may_be_first(now))
        self.queueing = ripe_at is not None and ripe_at <= now and not blocked
        if ripe_at is None or blocked:
            return inf
        if not self.queueing:
            return ripe_at
        key = (self.watch.version, self.watch.inc, self.watch.released_at)
        if self._turn is None or self._turn[0] != key:
            self._turn = (key, max(ripe_at, self._preferred_until()) + self._delay(inputs))
        return self._turn[1]

    def _delay(self, inputs: Inputs) -> float:
        view = self.view
        if self.reclaim or view is None:
            return 0.0
        if view.state is LeaseState.RELEASED and view.successor == self.settings.router_id:
            return 0.0
        unready = 0.0 if inputs.ready_to_take else UNREADY_S
        return inputs.rank * RANK_S + inputs.jitter * JITTER_S + unready

    def _preferred_until(self) -> float:
        """Counts from our sight of `released`, also where that was before the record became ripe."""
        version, until = self._preferred
        return until if not self.reclaim and version == self.watch.version else -inf

    def _may_be_first(self, now: float) -> bool:
        if not self.settings.prefer_standby or self._saw_owner:
            return True
        return self._nothing_since is not None and now - self._nothing_since >= FIRST_STANDBY_S

    # --- replies ---------------------------------------------------------------------------------

    def peeked(self, view: LeaseView, now: float) -> None:
        """Takes a view received at `now`."""
        self.view, self._fresh, self._heard = view, True, True
        self._answered_at = now
        self.learn(max(view.epoch, view.epoch_key))
        if self._yielded is not None and view.epoch > self._yielded:
            self._not_before, self._yielded = -inf, None
        self.watch.see(view, now)
        wanted = view.successor if view.state is LeaseState.RELEASED else ""
        if wanted not in ("", self.settings.router_id) and view.version != self._preferred[0]:
            self._preferred = (view.version, now + PREFERRED_S)
        self._peek_at = now if self._nudged else now + self.settings.timings.standby_probe_interval_s
        if view.state in {LeaseState.HELD, LeaseState.RELEASED}:
            self._saw_owner = True
        else:
            self._note_vacancy(view, now)
        if self.reclaim and not self.reclaim.covers(view):
            self.reclaim = None

    def _note_vacancy(self, view: LeaseView, now: float) -> None:
        """Nothing stored, or a marker beside an epoch key that forgot what we know: plant, raise."""
        if self._nothing_since is None:
            self._nothing_since = now
        self._claim = view.role == "master" and (view.state is None or view.epoch_key < self.known)

    def pledged(self, question: PledgeQuestion, now: float, *, refusal: str) -> PledgeAnswer:
        """`refusal`: why what this router holds forbids a pledge, "" if nothing does."""
        silent_s = now - self._answered_at
        if silent_s <= GOOD_PEEK_S:
            refusal = refusal or f"the store answered {silent_s:.1f} s ago"
        refusal = refusal or contradiction(question, self.view)
        return self.pledge.answer(question, now, refusal=refusal)

    def claimed(self, now: float) -> None:
        """A claim was answered or not: what is stored now decides."""
        self._peek_at = now

    def silent(self, now: float, *, starting: bool) -> None:
        """A peek got no answer. At start the pause grows from 0.25 to 2 s, with jitter."""
        self._fresh = self._heard = self.queueing = False
        self._turn = None
        self._peek_at = now + self.settings.timings.standby_probe_interval_s
        if starting:
            self._peek_at = now + self._start_pause * (0.5 + 0.5 * self._jitter)
            self._start_pause = min(2 * self._start_pause, START_PAUSE_S[1])
