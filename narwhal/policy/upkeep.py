"""Planned maintenance: orders, the records of engines and the wave, joined with how engines stand. Pure.

| event | does |
| --- | --- |
| drain | the engine is out of placement, until its own readmission |
| drain_wave | so are all, and each record is a member's |
| either, while a readmission of them runs | ends it: it is a drain again |
| require_wave | all are out, and nothing but a wave brings them back |
| an ejection, under `whole_wave` | requires a wave |
| validated | every check passed, and the fleet is not held: the engine serves; else blocked |
| wave_validated | every check of every member passed: all serve, in one change; else all are blocked |
| restore | what a handoff tells; engines that it does not know are members of its wave too |

What is refused is `narwhal.policy.orders`' matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from narwhal.errors import InvariantViolation
from narwhal.model.effect import NOTHING, Effect, Effects, Told, tell, tell_fleet
from narwhal.model.evidence import Check, Validated
from narwhal.model.maintenance import Captured, DrainState, WaveState, WaveView, WorkLeft
from narwhal.policy.blame import Blame
from narwhal.policy.drain import Drains, proves, row_of
from narwhal.policy.identification import WHOLE_WAVE, ProcessStarts
from narwhal.policy.orders import Orders
from narwhal.policy.readmission import FAILED
from narwhal.policy.standings import Standings
from narwhal.policy.wave import Wave

AGAIN = "readmit it again"
WAVE_AGAIN = "readmit the wave again"


class Upkeep:
    """Keeps the records, the wave and what the standings know of them together."""

    def __init__(
        self,
        engines: Iterable[str],
        *,
        standings: Standings,
        blame: Blame,
        starts: ProcessStarts,
        policy: str,
    ) -> None:
        """`starts`: where a readmission keeps the process that it accepted. `policy`:
        `recovery.engine_restart_policy`."""
        self.drains = Drains(engines)
        self.wave = Wave()
        """The same one always: the request path keeps it."""
        self.orders = Orders(self.drains, self.wave, standings=standings, policy=policy)
        self._standings = standings
        self._blame = blame
        self._policy = policy
        self._starts = starts
        standings.require_wave = self.require_wave
        if policy == WHOLE_WAVE:
            standings.after_ejection = lambda iid: self.require_wave(f"{iid} was ejected")

    # --- drains ----------------------------------------------------------------------------------

    def drain(self, iid: str, *, deadline_at: float) -> Effects:
        """Out of placement from now on. Drained before: at most the deadline is later, unless it was being
        validated: that is over."""
        if not self.drains.drain(iid, deadline_at=deadline_at):
            return NOTHING
        return (tell("drain", iid, reason="an operator took it out of placement"), *self._take_out())

    def drain_wave(self, wave_id: str, *, deadline_at: float) -> Effects:
        """The whole fleet is out of placement from now on. A wave that is on keeps its ID; if it was being
        validated, that is over."""
        states = {record.state for record in self.drains.records()}
        ended = self.wave.on and DrainState.VALIDATING in states
        new = self.wave.drain(wave_id)
        if ended:
            self.wave.interrupt()
        for iid in self._standings.engines:
            self.drains.drain(iid, deadline_at=deadline_at, wave_id=self.wave.wave_id)
        if not (new or ended):
            return NOTHING
        reason = "an operator took the whole fleet out of placement"
        return (tell_fleet("wave_drain", reason=reason, wave_id=self.wave.wave_id), *self._take_out())

    def require_wave(self, why: str) -> Effects:
        """Nothing but a wave brings the fleet back. `why`: a few words, which clients may see. One that is
        required or on already: nothing."""
        if not self.wave.require(why):
            return NOTHING
        return (_required(why), *self._take_out())

    def captured(self, iid: str, captured: Captured) -> None:
        self.drains.captured(iid, captured)

    def settle(self, iid: str, work: WorkLeft) -> Effects:
        if not self.drains.settle(iid, work):
            return NOTHING
        reason = "no work is left and its process is on record: it may be stopped"
        told = tell("drained", iid, reason=reason)
        if not self.view().ready_to_stop:
            return (told,)
        reason = "every member may be stopped"
        return (told, tell_fleet("wave_drained", reason=reason, wave_id=self.wave.wave_id))

    def expire(self, wall: float) -> Effects:
        """`wall`: Unix seconds."""
        reason = "the deadline of its drain passed: it stays out, its work goes on"
        return tuple(tell("drain_deadline", iid, reason=reason) for iid in self.drains.expire(wall))

    def taken(self, iid: str) -> bool:
        """It gets no leg, not even of a probe: it is out by an operator's word or with the whole fleet, and
        no readmission of it runs."""
        state = self.drains.record(iid).state
        return iid in self._standings.drained and state is not DrainState.VALIDATING

    def finishing(self, producer: str) -> frozenset[str]:
        """Who takes the decode of a prefill that was placed before, where nobody takes new work: its
        `producer`, and with the whole fleet held every engine that was not drained alone: the hold came after
        the prefill, such a drain may not have. Never one that may be stopped already."""
        parting = self._standings.sound(self._standings.parting)
        records = [record for record in map(self.drains.record, parting) if record.runs_on]
        takers = {one.iid for one in records if not one.alone} if self.wave.reason else set()
        return frozenset(takers | {one.iid for one in records if one.iid == producer})

    # --- readmissions ----------------------------------------------------------------------------

    def validated(self, told: Validated, *, process_start: float | None, now: float) -> Effects:
        """How the validation of one engine ended; `process_start` is what it found, None if it did not come
        so far. Not under way (an owner between), or of a member of a wave: nothing."""
        iid, checks = told.iid, told.checks
        record = self.drains.record(iid)
        if record.state is not DrainState.VALIDATING or record.wave_id is not None:
            return NOTHING
        error = _why_blocked(told, AGAIN) or self._why_held(iid)
        if error:
            self.drains.block(iid, checks, error=error, process_start=process_start)
            return (_blocked(told, error),)
        self._accept(told, process_start=process_start)
        self._take_out()
        return self._blame.reinstate(iid, now)

    def begin_wave(self) -> None:
        """A validation of every member begins, unless one is under way."""
        self.wave.begin()
        for record in self.drains.records():
            if record.state is not DrainState.VALIDATING:
                self.drains.begin(record.iid)

    def wave_validated(
        self, told: Mapping[str, Validated], *, process_starts: Mapping[str, float], now: float
    ) -> Effects:
        """How the validation of a wave ended, by engine; who is missing was not looked at. Not under way (an
        owner between): nothing."""
        records = self.drains.records()
        if not self.wave.on or any(record.state is not DrainState.VALIDATING for record in records):
            return NOTHING
        ends = [told.get(record.iid, Validated(record.iid, (), conclusive=False)) for record in records]
        errors = {one.iid: error for one in ends if (error := _why_blocked(one, WAVE_AGAIN))}
        if errors:
            return self._block_wave(ends, errors, process_starts=process_starts)
        for one in ends:
            self._accept(one, process_start=process_starts.get(one.iid))
        wave_id = self.wave.wave_id
        self.wave.complete()
        self._take_out()
        back = [effect for one in ends for effect in self._blame.reinstate(one.iid, now)]
        reason = "every check of every member passed: the whole fleet serves"
        return (tell_fleet("wave_completed", reason=reason, wave_id=wave_id), *back)

    # --- what is, and what travels ---------------------------------------------------------------

    def view(self) -> WaveView:
        wave, records = self.wave, self.drains.records()
        return WaveView(
            wave.wave_id,
            active=wave.on,
            readiness_withdrawn=bool(wave.reason),
            ready_to_stop=wave.on and all(record.ready_to_stop for record in records),
            reason=wave.reason,
        )

    def why_out(self, iid: str | None) -> str:
        """Why the engine (None: the wave) is still out after its readmission, a sentence; "" unless an
        operator's drain or a held fleet keeps it out."""
        if iid is None:
            return self.wave.error or (_cut_off("the wave", WAVE_AGAIN) if self.wave.on else self._why_held())
        record = self.drains.record(iid)
        then = AGAIN if record.wave_id is None else "readmit the wave"
        return record.error or (_cut_off(iid, then) if record.out else self._why_held(iid))

    def rows(self) -> dict[str, dict[str, Any]]:
        """Engine ID to its record, those of active engines too."""
        return {record.iid: row_of(record) for record in self.drains.records()}

    def export(self) -> dict[str, Any]:
        """Its fields of the handoff's `lifecycle`."""
        wave = self.wave.export()
        return {
            "wave": None if wave is None else wave | {"ready_to_stop": self.view().ready_to_stop},
            "records": self.drains.export(),
            "engine_restart_policy": self._policy,
        }

    def restore(self, lifecycle: Mapping[str, Any], *, ejected: Iterable[str], unfit: str = "") -> Effects:
        """Takes them from a handoff. Before the standings are restored: holds of drained engines are none.

        `ejected`: who is out by a verdict; an owner before may have had another restart policy. `unfit`: why
        the fleet must not go on with that handoff, "" if it may. What is to be told: a wave that nobody has
        required before, with every reason for it.
        """
        self.drains.restore(lifecycle.get("records"))
        unread = self.wave.restore(lifecycle.get("wave"))
        self._join_wave()
        out = sorted(set(self._standings.engines).intersection(ejected))
        whys = [unread, unfit, f"{out[0]} was ejected" if out and self._policy == WHOLE_WAVE else ""]
        why = "; ".join(filter(None, whys))
        new = bool(why) and self.wave.require(why)
        parting = self._standings.parting
        self._take_out()
        # How the engines stood that another owner took out nobody knows here.
        self._standings.parting &= parting
        return (_required(why),) if new or unread else NOTHING

    def check_invariants(self) -> None:
        """A wave is all or nothing."""
        self.wave.check_invariants()
        self.drains.check_invariants()
        for record in self.drains.records():
            if record.wave_id != self.wave.wave_id or self.wave.on > record.out:
                raise InvariantViolation(f"{record.iid}: {record.state}, wave {self.wave.wave_id}")

    # --- inside ----------------------------------------------------------------------------------

    def _why_held(self, iid: str = "") -> str:
        """What keeps an engine ("": all of them) out whatever its checks came to; "": nothing."""
        if self.wave.state is not WaveState.REQUIRED:
            return ""
        who = f"{iid} stays out with the whole fleet, which" if iid else "the whole fleet stays out and"
        return f"{who} needs a wave ({self.wave.why}): drain the wave"

    def _take_out(self) -> Effects:
        """Tells the standings who is out by an operator's word, or by the wave that is needed."""
        everyone = frozenset(self._standings.engines) if self.wave.reason else frozenset()
        return self._standings.set_drained(self.drains.out() | everyone)

    def _join_wave(self) -> None:
        """Nobody stands beside a wave: an engine that is new here is drained with it, and a record of a wave
        that is none is one of its engine alone."""
        if not self.wave.on:
            self.drains.leave_wave()
            return
        records = self.drains.records()
        deadline_at = max((record.deadline_at or 0.0 for record in records), default=0.0)
        for record in records:
            self.drains.drain(record.iid, deadline_at=deadline_at, wave_id=self.wave.wave_id)

    def _accept(self, told: Validated, *, process_start: float | None) -> None:
        self.drains.passed(told.iid, told.checks, process_start=process_start)
        if process_start is not None:
            self._starts.accept(told.iid, process_start)

    def _block_wave(
        self, ends: Iterable[Validated], errors: Mapping[str, str], *, process_starts: Mapping[str, float]
    ) -> Effects:
        """One that fails keeps all out; the others say whom they wait for."""
        failed = {one.iid: errors[one.iid] for one in ends if _failed(one) is not None}
        open_ = {one.iid: errors[one.iid] for one in ends if one.why}
        reasons = failed or open_ or errors
        first = next(iter(reasons.values()))
        effects: list[Effect] = []
        for one in ends:
            own = reasons.get(one.iid)
            error = own or f"{one.iid} stays out with its wave: {first}"
            self.drains.block(one.iid, one.checks, error=error, process_start=process_starts.get(one.iid))
            if one.iid in failed:
                effects.append(_blocked(one, error))
        self.wave.block(first)
        reason = f"the whole wave stays out: {first}"
        return (*effects, tell_fleet("wave_blocked", reason=reason, wave_id=self.wave.wave_id))


def _required(why: str) -> Told:
    return tell_fleet("wave_required", reason=held_until_a_wave(why))


def held_until_a_wave(why: str) -> str:
    """A sentence."""
    return f"{why}: the whole fleet is held until an operator completes a wave"


def _cut_off(who: str, then: str) -> str:
    return f"{who} stays out: its readmission was interrupted, by a drain or a change of owner; {then}"


def _failed(told: Validated) -> Check | None:
    return next((check for check in told.checks if check.outcome == FAILED), None)


def _blocked(told: Validated, error: str) -> Effect:
    failed = _failed(told)
    return tell("readmission_failed", told.iid, reason=error, check=failed.name if failed else "")


def _why_blocked(told: Validated, then: str) -> str:
    """Empty when every check passed or was skipped. `then`: what the operator does next."""
    iid, failed = told.iid, _failed(told)
    if failed is not None:
        detail = failed.detail.rstrip(".")
        return f"{iid} stays out: the check {failed.name} failed ({detail}); mend that and {then}"
    if not told.conclusive or not proves(told.checks):
        last = f" after {told.checks[-1].name}" if told.checks else ""
        return f"{iid} stays out: {told.why or f'the checks could not be finished{last}'}; {then}"
    return ""
