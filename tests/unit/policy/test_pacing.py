"""Drift joined with standings and resident work, through the fleet that owns them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from narwhal.model.decoding import DecodeSeen, RoleLoad
from narwhal.model.effect import Told
from narwhal.model.engine import EngineProfile, EngineSpec, Role
from narwhal.model.evidence import Check, Validated
from narwhal.model.placement import Demand, Reservation
from narwhal.policy.fleet import Fleet
from tests.support.settings import fleet_config, recovery_settings

HEALTH = replace(recovery_settings().health, window_s=3.0, min_samples=3, recovery_windows=1)
D0, D1 = "d0", "d1"


def spec(iid: str) -> EngineSpec:
    """The first letter is the role, upper case for pinned."""
    role = Role.PREFILL if iid[0].lower() == "p" else Role.DECODE
    return EngineSpec(iid, f"http://{iid}", role, pin=iid[0].isupper())


def profile(iid: str) -> EngineProfile:
    return EngineProfile(iid, 0.0, 0.001, 0.0, tpot_slope=1e-6, tpot_intercept=0.01)


class Passes:
    """A fleet and its monitor passes of one second: first `health`, then `rollover`."""

    def __init__(self, *iids: str, profiled: bool = False) -> None:
        self.config = fleet_config(*map(spec, iids), recovery=recovery_settings(health=HEALTH))
        self.fleet = Fleet(self.config, {iid: profile(iid) for iid in iids} if profiled else {})
        self.pacing = self.fleet.pacing
        self.now = 100.0
        self.told: list[Told] = []

    def ends(self, **intervals: float) -> None:
        """One pass; what the streams showed before it."""
        self.now += 1.0
        for effect in self.pacing.close(self.now):
            assert isinstance(effect, Told)
            self.told.append(effect)
        seen = [DecodeSeen(iid, interval_s, 1.0, 100.0) for iid, interval_s in intervals.items()]
        self.pacing.roll(seen, self.now)
        self.pacing.check_invariants()
        self.fleet.check_invariants()

    def windows(self, count: int, **intervals: float) -> list[str]:
        """So many whole windows; the kinds that were told."""
        before = len(self.told)
        for _ in range(3 * count):
            self.ends(**intervals)
        return [told.kind for told in self.told[before:]]

    def prefill(self, tokens: int = 100) -> Reservation:
        reservation = self.fleet.reserve_prefill(Demand(tokens), self.now)
        assert reservation is not None
        return reservation

    def decode(self, tokens: int = 100) -> Reservation:
        reservation = self.fleet.reserve_decode(Demand(tokens), self.now, producer="p0")
        assert reservation is not None
        return reservation

    def slow(self, iid: str) -> None:
        """The engine drifts until it is on probation."""
        self.windows(1, **{iid: 0.02})
        self.ends(**{iid: 0.05})
        assert self.windows(3, **{iid: 0.05}) == ["probation"]


# --- prefill pauses --------------------------------------------------------------------------------


def test_a_prefill_that_is_resident_pauses_scoring() -> None:
    passes = Passes("p0", D0)
    passes.ends(p0=0.02)
    reservation = passes.prefill()
    passes.ends(p0=0.5)
    passes.ends(p0=0.5)
    assert passes.pacing.health(passes.now)["p0"].prefill_paused
    passes.fleet.release(reservation, passes.now)
    passes.ends(p0=0.5)
    assert passes.pacing.health(passes.now)["p0"].prefill_paused, "it was resident in this interval too"
    passes.ends(p0=0.02)
    health = passes.pacing.health(passes.now)["p0"]
    assert (health.prefill_paused, health.prefill_pauses) == (False, 1)


def test_a_prefill_that_started_and_finished_between_two_passes_pauses_too() -> None:
    passes = Passes("p0", D0)
    passes.ends(p0=0.02)
    passes.fleet.release(passes.prefill(), passes.now)
    passes.ends(p0=0.5)
    assert passes.pacing.health(passes.now)["p0"].prefill_pauses == 1
    passes.ends(p0=0.02)
    assert not passes.pacing.health(passes.now)["p0"].prefill_paused


def test_a_prefill_in_an_open_window_pauses_it_though_nothing_decoded_meanwhile() -> None:
    passes = Passes("p0", D0)
    passes.ends(p0=0.02)
    passes.fleet.release(passes.prefill(), passes.now)
    passes.ends()
    assert passes.pacing.health(passes.now)["p0"].prefill_paused


def test_an_engine_that_only_prefills_has_no_drift_to_pause() -> None:
    passes = Passes("p0", D0)
    for _ in range(3):
        passes.fleet.release(passes.prefill(), passes.now)
        passes.ends(d0=0.02)
    assert set(passes.pacing.health(passes.now)) == {D0}


def test_mixed_work_still_counts_as_load() -> None:
    passes = Passes("p0", D0, profiled=True)
    passes.prefill(500)
    passes.ends(p0=0.5, d0=0.03)
    load = passes.pacing.load({Role.PREFILL: ["p0"], Role.DECODE: [D0]})
    assert load == RoleLoad(prefill=pytest.approx(0.5), decode=pytest.approx(0.5))
    passes.ends(p0=0.5)
    assert passes.pacing.load({Role.PREFILL: [], Role.DECODE: [D0]}) == RoleLoad(0.0, 0.0)


def test_without_profiles_there_is_no_load_to_tell() -> None:
    passes = Passes("p0", D0)
    passes.ends(d0=0.03)
    assert passes.pacing.load({Role.PREFILL: ["p0"], Role.DECODE: [D0]}) == RoleLoad(None, None)


# --- probation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("profiled", [False, True])
def test_an_engine_on_probation_gets_new_work_behind_the_others_and_is_not_excluded(profiled: bool) -> None:
    passes = Passes("p0", D0, D1, profiled=profiled)
    passes.slow(D0)
    assert passes.pacing.probation == (D0,)
    assert passes.fleet.available(passes.now) == (D0, D1, "p0")
    assert {passes.decode().iid for _ in range(10)} == {D1}
    assert passes.windows(1, d0=0.02) == ["probation_ended"]
    assert passes.pacing.probation == ()
    assert passes.decode().iid == D0


def test_an_engine_on_probation_without_work_is_tried_again() -> None:
    passes = Passes("p0", D0, D1)
    passes.slow(D0)
    passes.ends(d1=0.02)
    assert {passes.decode().iid for _ in range(5)} == {D1}
    for _ in range(3):
        passes.ends(d1=0.02)
    assert passes.decode().iid == D0
    assert passes.windows(2, d0=0.02) == ["probation_ended"]


def test_the_only_engine_goes_on_serving_on_probation() -> None:
    passes = Passes("p0", D0, profiled=True)
    passes.slow(D0)
    reservation = passes.decode()
    assert (reservation.iid, reservation.violates_slo) == (D0, False)


def test_verdicts_are_told_with_engine_and_reason() -> None:
    passes = Passes("p0", D0, D1)
    passes.slow(D0)
    (told,) = passes.told
    assert (told.kind, told.enforced, told.fields["iid"]) == ("probation", True, D0)
    assert told.fields["reason"].startswith("its decode interval is 2.5 times its healthy one")


# --- ejection --------------------------------------------------------------------------------------


def test_evict_windows_eject_and_the_history_is_dropped() -> None:
    passes = Passes("p0", D0, D1)
    passes.slow(D0)
    assert passes.windows(2, d0=0.05) == ["ejection"]
    assert passes.fleet.standings.ejected() == (D0,)
    assert (passes.pacing.probation, passes.fleet.available(passes.now)) == ((), (D1, "p0"))
    assert passes.windows(5, d0=0.05) == [], "what its last streams show is no evidence"
    passes.fleet.step(Validated(D0, (Check("health", "passed"),)), passes.now)
    assert passes.windows(6, d0=0.05) == [], "back, it is measured by itself"
    assert passes.decode().iid in (D0, D1)


def test_drift_never_takes_the_last_engine_of_a_leg() -> None:
    passes = Passes("P0", D0)
    passes.slow(D0)
    assert passes.windows(2, d0=0.05) == ["ejection"]
    refused = passes.told[-1]
    assert not refused.enforced
    assert refused.fields["reason"].startswith(
        "no ejection for decode drift, since no other engine can take its part:"
    )
    assert passes.fleet.available(passes.now) == ("P0", D0)
    assert passes.pacing.probation == (D0,), "the history stays: it was no confirmed ejection"


def test_an_ejection_for_another_reason_drops_the_history_too() -> None:
    passes = Passes("p0", D0, D1)
    passes.slow(D0)
    passes.fleet.standings.eject(D0, "it refused connections", now=passes.now)
    passes.ends(d0=0.05)
    assert passes.pacing.probation == ()
    assert passes.pacing.health(passes.now)[D0].last_scored_s_ago is None
