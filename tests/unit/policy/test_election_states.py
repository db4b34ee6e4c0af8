"""The lease machine against any order of events (Hypothesis): it never contradicts itself, never lies to the
gate, and a model of its duties never disagrees.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from narwhal.model.control import RouterState
from narwhal.model.leadership import Remembered
from narwhal.model.lease import (
    Acquired,
    HeldBy,
    LeaseState,
    LeaseVersion,
    Lost,
    NewServer,
    NothingStored,
    Reinstated,
    Renewed,
    Stale,
)
from narwhal.model.settings import LeaseTimings
from narwhal.policy.candidacy import ElectionSettings
from narwhal.policy.election import Election
from narwhal.policy.intents import (
    Acquire,
    Claim,
    Effect,
    Extended,
    Fenced,
    Granted,
    Inputs,
    Intent,
    Peek,
    Release,
    Released,
    Renew,
    Rest,
)
from tests.unit.policy.election_rig import EMPTY, HELD, LIFE, OTHER_INC, RELEASED

STEPS = st.sampled_from([0.0, 0.001, 0.05, 0.25, 0.4, 0.9, 2.0, 3.5, 6.0])
TERM_S = 4.0


class AnyOrder(RuleBasedStateMachine):
    """Plays store and clock; `self.call` is the call in flight and `self.sent` its time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.drawn = 0
        self.machine = Election(ElectionSettings("r0", LeaseTimings()), Remembered(), now=0.0)
        self.call: Intent | None = None
        self.sends: list[float] = []
        self.used: set[str] = set()
        self.seqs: dict[str, int] = {}
        self.over: set[str] = set()
        self.until = 0.0
        self.granted = ""
        self.epochs: list[int] = []
        self.rest = 0.0

    # --- events ----------------------------------------------------------------------------------

    @rule(step=STEPS, number=st.integers(0, 15), moments=st.integers(1, 12))
    def go_on(self, step: float, number: int, moments: int) -> None:
        """Some moments in a row; mostly the ones in which a lease is got and kept."""
        for moment in range(moments):
            if self.call is not None:
                self._reply(step if moment == 0 else 0.001, number if moment == 0 else 0)
            elif self.machine.phase is not RouterState.STOPPED:
                self._next(step if moment == 0 else self.rest, number if moment == 0 else 0)

    def _next(self, step: float, number: int) -> None:
        main_alive, may_compete = number != 14, number != 15
        self.now += step
        self.drawn += 1
        self._take(self.machine.tick(self.now))
        inputs = Inputs(
            f"t{self.drawn}", f"n{self.drawn}", 0.5, main_alive=main_alive, may_compete=may_compete
        )
        self._do(self.machine.next(self.now, inputs))

    def _reply(self, step: float, number: int) -> None:
        match self.call:
            case Peek():
                self.seen(step, number)
            case Claim():
                self._answer(step, (True, False, None)[number % 3])
            case Acquire():
                self.acquired(step, number)
            case Renew():
                self.renewed(step, number)
            case Release():
                self._answer(step, (True, Lost(), None)[number % 3])

    def _do(self, intent: Intent) -> None:
        match intent:
            case Rest(until):
                assert until > self.now, "a rest that is over keeps the keeper busy for nothing"
                self.rest = min(until - self.now, 60.0)
                return
            case Acquire(token):
                assert token not in self.over
                self.sends = [*self.sends, self.now] if token in self.used else [self.now]
                self.used.add(token)
            case Renew(token, _, seq):
                assert token not in self.over, "a fenced token is never used again"
                assert seq > self.seqs.get(token, 0), "every attempt has a higher seq"
                assert self.now < self.until - 0.1, "no attempt in the last tenth before D"
                self.seqs[token] = seq
        if isinstance(intent, Renew | Peek | Claim | Release):
            self.sends = [self.now]
        self.call = intent if isinstance(intent, Peek | Claim | Acquire | Renew | Release) else None

    def seen(self, step: float, number: int) -> None:
        kinds = ("released", "empty", "held", "vacant", "replica", "moved", "own", "none")
        kind, number = kinds[number % 8], number % 3
        version, reclaim = LeaseVersion(f"x{number}", number), self.machine.candidacy.reclaim
        views: dict[str, Any] = {
            "empty": EMPTY,
            "held": replace(HELD, version=version, epoch=7 + number),
            "released": RELEASED,
            "vacant": replace(HELD, state=LeaseState.VACANT, version=version, epoch=0),
            "replica": replace(HELD, role="slave"),
            "moved": replace(RELEASED, inc=OTHER_INC),
            "own": replace(HELD, version=LeaseVersion(reclaim.token if reclaim else "x", number)),
            "none": None,
        }
        self._answer(step, views[kind])

    def acquired(self, step: float, number: int) -> None:
        kind = ("ok", "again", "held", "new", "none", "silent", "low", "ok")[number % 8]
        floor = self.machine.candidacy.known
        replies: dict[str, Any] = {
            "ok": Acquired(floor + 1, LIFE),
            "again": Acquired(floor + 1, LIFE, again=True),
            "held": HeldBy("r1", floor + 2),
            "new": NewServer("inc"),
            "none": NothingStored(),
            "silent": None,
            "low": Acquired(floor, "life"),
        }
        self._answer(step, replies[kind])

    def renewed(self, step: float, number: int) -> None:
        kind = ("ok", "reinstated", "stale", "silent", "lost", "ok", "ok")[number % 7]
        replies: dict[str, Any] = {
            "ok": Renewed(LIFE, {}),
            "reinstated": Reinstated(LIFE + "2"),
            "stale": Stale(),
            "lost": Lost("held", self.machine.candidacy.known + 1, "r1"),
            "silent": None,
        }
        self._answer(step, replies[kind])

    def _answer(self, step: float, reply: Any) -> None:
        self.now += step
        call, self.call = self.call, None
        self._take(self.machine.answered(reply, self.now))
        if (reply is None or isinstance(reply, Stale)) and isinstance(call, Acquire | Renew | Release):
            self._repeat()

    def _repeat(self) -> None:
        """What the keeper does with an unanswered call."""
        tenure = self.machine.tenure
        again = None
        if tenure is not None and self.now + 0.25 < tenure.retry_until:
            self.now += 0.25
            self._take(self.machine.tick(self.now))
            again = self.machine.again(self.now, main_alive=True)
        if again is None:
            self._take(self.machine.gave_up(self.now))
        else:
            self._do(again)

    # --- commands --------------------------------------------------------------------------------

    @rule(right=st.booleans())
    def opened(self, right: bool) -> None:
        self.machine.opened(self.granted if right else "nobody's")

    @rule()
    def fence(self) -> None:
        self._take(self.machine.fence(self.granted, "told to"))

    @rule()
    def supersede(self) -> None:
        floor = self.machine.candidacy.known + 5
        self._take(self.machine.supersede(self.granted, floor, why="told to", now=self.now))

    @rule()
    def drain_and_release(self) -> None:
        self.machine.drain(self.granted)
        self.machine.release("yield", now=self.now)

    @precondition(lambda self: self.drawn > 12)
    @rule()
    def stop(self) -> None:
        self.machine.stop(now=self.now)

    # --- what must be true -----------------------------------------------------------------------

    def _take(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Granted(token, epoch, valid_until):
                    assert token not in self.over and self.now < valid_until
                    assert valid_until <= max(self.sends) + TERM_S
                    assert not self.epochs or epoch > self.epochs[-1]
                    self.epochs.append(epoch)
                    self.granted, self.until = token, valid_until
                case Extended(token, valid_until):
                    assert token == self.granted and token not in self.over
                    assert self.now < self.until, "a reply after D is discarded"
                    assert valid_until <= self.sends[-1] + TERM_S, "D counts from before the send"
                    self.until = max(self.until, valid_until)
                case Fenced(token) | Released(token):
                    self.over.add(token)

    @invariant()
    def the_machine_agrees_with_itself(self) -> None:
        self.machine.check_invariants()

    @invariant()
    def nobody_owns_past_the_deadline_once_the_clock_was_looked_at(self) -> None:
        if self.machine.phase in {RouterState.OWNER, RouterState.SUSPECT}:
            assert self.granted not in self.over


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
