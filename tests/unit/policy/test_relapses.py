"""Engines whose probes pass and whose traffic fails stay out longer from time to time, and never for good."""

from __future__ import annotations

import pytest

from narwhal.model.effect import Effect, ProbeKind, ProbeWanted
from narwhal.model.engine import Leg
from narwhal.model.evidence import Check, InferenceProbed, LegAnswered, LegSucceeded, ProbeOutcome, Validated
from narwhal.policy.relapses import GOOD_LEGS, PAROLE_S, Relapses
from tests.unit.policy.test_blame import BAD, GOOD, Court, decode_failed, prefill_failed

EVERY_S = 10.0
"""Of `Court`: 10 passes of a second."""


def probes(effects: list[Effect] | tuple[Effect, ...]) -> list[str]:
    wanted = (one for one in effects if isinstance(one, ProbeWanted))
    return [one.iid for one in wanted if one.kind is ProbeKind.INFERENCE]


class Stubborn(Court):
    """`p0` answers probes well and fails whatever traffic it gets."""

    def fail(self) -> list[str]:
        """A whole streak at once; whose probes were asked."""
        return probes([one for n in range(3) for one in self(prefill_failed("p0", b"%d" % n))])

    def wait(self, seconds: float) -> list[str]:
        """Passes of a second; whose probes came due meanwhile."""
        due = []
        for _ in range(int(seconds)):
            self.now += 1.0
            due += probes(self.blame.tick(self.now))
        return due

    def probed(self, outcome: ProbeOutcome = GOOD) -> None:
        self(InferenceProbed("p0", outcome))


def test_the_first_hold_is_probed_at_once() -> None:
    court = Stubborn()
    assert court.fail() == ["p0"]
    court.probed()
    assert court.held == {}


def test_a_hold_that_refutes_a_good_probe_lasts_a_probe_interval_then_two() -> None:
    court = Stubborn()
    court.fail()
    for rest_s in (EVERY_S, 2 * EVERY_S, 2 * EVERY_S):
        court.probed()
        assert court.held == {}
        assert court.fail() == []
        assert court.wait(rest_s - 1) == []
        assert court.held == {"p0": "inference"}
        assert court.wait(1) == ["p0"]


def test_the_reason_says_so() -> None:
    court = Stubborn()
    court.fail()
    court.probed()
    court.fail()
    reason = court.judgement.standings.holds(court.now)["p0"].reason
    assert reason.endswith("; its last good probe was refuted, so the next one waits 10 s")


def test_good_legs_in_a_row_earn_trust_and_few_do_not() -> None:
    court = Stubborn()
    court.fail()
    court.probed()
    court(*[LegSucceeded("p0", Leg.PREFILL)] * (GOOD_LEGS - 1))
    assert court.fail() == []
    court.wait(EVERY_S)
    court.probed()
    court(*[LegSucceeded("p0", Leg.PREFILL)] * GOOD_LEGS)
    assert court.fail() == ["p0"]


def test_good_legs_count_anew_after_a_bad_one() -> None:
    court = Stubborn()
    court.fail()
    court.probed()
    for _ in range(3):
        court(*[LegSucceeded("p0", Leg.PREFILL)] * (GOOD_LEGS // 2), prefill_failed("p0", b"x"))
    assert court.fail() == []


def test_a_hold_long_after_the_good_probe_refutes_nothing() -> None:
    court = Stubborn()
    court.fail()
    court.probed()
    court.wait(PAROLE_S + 1)
    assert court.fail() == ["p0"]


def test_a_bad_probe_ejects_as_ever_and_a_readmission_begins_anew() -> None:
    court = Stubborn()
    court.fail()
    court.probed()
    court.fail()
    court.probed(BAD)
    assert court.out == ("p0",)
    court(Validated("p0", (Check("health", "passed"),)))
    assert court.out == ()
    assert court.fail() == ["p0"]


def test_a_probe_that_is_under_way_does_not_end_the_rest() -> None:
    """It was asked for something else, before the hold."""
    court = Stubborn()
    court.fail()
    court.probed()
    asked = court(prefill_failed("p0", b"poison"), prefill_failed("p1", b"poison"))
    (number,) = (one.number for one in asked if isinstance(one, ProbeWanted) and one.iid == "p0")
    court.fail()
    assert probes(court(InferenceProbed("p0", GOOD, number=number))) == []
    assert court.held == {"p0": "inference"}
    assert "p0" not in court.wait(EVERY_S - 1)
    assert "p0" in court.wait(1)


def test_the_last_engine_is_not_held_whatever_it_did() -> None:
    court = Stubborn()
    court.judgement.standings.able = {leg: frozenset({"p0"}) for leg in (Leg.PREFILL, Leg.DECODE)}
    for _ in range(3):
        assert court.fail() == ["p0"]
        court.probed()
        assert court.held == {}


def test_who_is_freed_as_the_last_one_is_probed_in_the_next_pass() -> None:
    court = Stubborn()
    court.fail()
    court.probed()
    court.fail()
    court.judgement.standings.able = {leg: frozenset({"p0", "p1"}) for leg in (Leg.PREFILL, Leg.DECODE)}
    court.judgement.standings.eject("p1", "gone", now=court.now)
    assert court.held == {}
    assert court.wait(1) == ["p0"]


class Pestered(Stubborn):
    """`p0` answers probes well, 0.2 s after they are asked, and gets bad requests and nothing else."""

    asked: tuple[float, int] | None = None
    requests = 0

    def look(self, effects: list[Effect] | tuple[Effect, ...]) -> None:
        for one in effects:
            if isinstance(one, ProbeWanted) and one.iid == "p0" and one.kind is ProbeKind.INFERENCE:
                self.asked = (self.now + 0.2, one.number)

    def live(self, seconds: int, *, status: int, every: int, same: bool = False) -> float:
        """A different request every `every` seconds, or the `same` one; for how long it was out."""
        out = 0
        for tenth in range(seconds * 10):
            self.now += 0.1
            if tenth % 10 == 0:
                self.look(self.blame.tick(self.now))
            if self.asked is not None and self.now >= self.asked[0]:
                number, self.asked = self.asked[1], None
                self.look(self(InferenceProbed("p0", GOOD, number=number)))
            if tenth % (10 * every) == 0 and not self.held and not self.out:
                self.requests += 1
                request = b"same" if same else b"%d" % self.requests
                self.look(self(LegAnswered("p0", Leg.PREFILL, status, request)))
            out += bool(self.held)
        return out / 10


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize("every", [1, 3, 9])
def test_bad_requests_of_one_client_hold_a_sound_engine_once_and_for_one_probe(
    status: int, every: int
) -> None:
    court = Pestered()
    assert court.live(240, status=status, every=every) <= 0.3
    assert court.requests >= 240 // every


@pytest.mark.parametrize("status", [400, 401, 403, 404, 415, 451])
@pytest.mark.parametrize("every", [1, 3, 9])
def test_one_request_that_a_client_repeats_never_holds_a_sound_engine(status: int, every: int) -> None:
    """A filter before the engine may refuse that one."""
    court = Pestered()
    assert court.live(120, status=status, every=every, same=True) == 0
    assert court.requests >= 120 // every


def test_rare_ones_hold_it_for_one_probe_at_a_time() -> None:
    assert Pestered().live(900, status=400, every=30) <= 0.3 * 900 / 90


def test_an_engine_whose_proxy_refuses_all_but_probes_stays_out_longer_as_ever() -> None:
    court = Pestered()
    assert court.live(120, status=401, every=1) > 60


def test_an_engine_that_begins_to_refuse_everything_after_a_good_probe_is_found() -> None:
    court = Stubborn()
    refused = [LegAnswered("p0", Leg.PREFILL, 400, b"%d" % n) for n in range(3)]
    court(*refused)
    court.probed()
    court.now += 10.0
    assert probes(court(*refused)) == ["p0"]
    assert court.held == {}
    court(InferenceProbed("p0", BAD, status=400))
    assert court.out == ("p0",)


def test_bad_requests_neither_begin_nor_end_nor_feed_what_failures_began() -> None:
    court = Stubborn()
    refused = [LegAnswered("p0", Leg.PREFILL, 400, b"%d" % n) for n in range(3)]
    court(*refused)
    court.probed()
    assert court.fail() == ["p0"], "the first hold for failures"
    court.probed()
    court.now += 61.0
    assert probes(court(*refused)) == ["p0"]
    court.probed()
    court.now += 0.5
    assert court.fail() == ["p0"], "trusted, for the last failures were a minute ago"


def test_refusals_of_one_kind_of_leg_are_looked_into_each_time_and_refute_no_probe() -> None:
    court = Stubborn()
    refused = [LegAnswered("p0", Leg.DECODE, 403, b"%d" % n) for n in range(3)]
    between = LegSucceeded("p0", Leg.PREFILL)
    for _ in range(3):
        assert probes([effect for one in refused for effect in court(between, one)]) == ["p0"]
        assert court.held == {"p0": "inference"}
        court.probed()
    assert court.fail() == ["p0"], "the first hold for failures"


def test_a_failure_among_them_is_the_engines_own() -> None:
    court = Stubborn()
    row = [
        decode_failed("p0", request=b"x"),
        *(LegAnswered("p0", Leg.DECODE, 403, b"%d" % n) for n in range(2)),
    ]
    for asked in (["p0"], []):
        assert (
            probes([effect for one in row for effect in court(LegSucceeded("p0", Leg.PREFILL), one)]) == asked
        )
        assert court.held == {"p0": "inference"}
        court.probed()


def test_failures_while_it_is_held_for_bad_requests_are_its_own() -> None:
    court = Stubborn()
    court(*[LegAnswered("p0", Leg.PREFILL, 400, b"%d" % n) for n in range(3)])
    assert court.fail() == []
    court.probed()
    assert court.held == {}
    assert court.fail() == []
    assert court.held == {"p0": "inference"}


def test_a_new_ownership_knows_of_no_relapse() -> None:
    relapses = Relapses()
    relapses.freed("p0", 0.0)
    assert relapses.held("p0", 1.0) == 1
    relapses.clear()
    assert relapses.held("p0", 2.0) == 0


def test_consumers_are_held_longer_too() -> None:
    court = Stubborn()
    for n in range(3):
        court(decode_failed("d0", request=b"%d" % n))
    court(InferenceProbed("d0", GOOD))
    effects = [one for n in range(3) for one in court(decode_failed("d0", request=b"%d" % n))]
    assert court.held == {"d0": "inference"}
    assert probes(effects) == []
