"""Claims: which count, what makes an owner degraded, and the truce after a yield by claim."""

from __future__ import annotations

from dataclasses import replace

import pytest

from narwhal.model.handover import PeerReady
from narwhal.policy.claims import Bench, Hearing, Suspicion, Truce, Verdict, is_own, judge

SHARED, OWN = "monitoring degraded: controller ValueError", "monitoring degraded: handoff OSError"
BENCH = Bench(epoch=7, degraded=SHARED, fit=("b", "c"), truce=False)
CLAIM = '{"epoch": 7, "reason": "r"}'


def test_a_degraded_owner_yields_to_a_valid_claim() -> None:
    assert judge({"b": CLAIM}, BENCH) == Verdict("b", {})
    assert judge({}, BENCH) == Verdict("", {})


@pytest.mark.parametrize(
    "text", ['{"epoch": 6}', '{"epoch": 8}', '{"epoch": "7"}', "{}", "[]", "7", "nonsense"]
)
def test_a_claim_counts_for_the_current_epoch_only(text: str) -> None:
    assert judge({"b": text}, BENCH) == Verdict("", {"b": "it is for another epoch"})


def test_a_claim_of_a_router_that_is_not_known_to_live_and_be_ready_does_not_count() -> None:
    verdict = judge({"x": CLAIM}, BENCH)
    assert verdict == Verdict("", {"x": "the claimant is not known to live and to be ready"})


def test_a_claim_against_a_healthy_owner_is_ignored() -> None:
    verdict = judge({"b": CLAIM}, replace(BENCH, degraded=""))
    assert verdict == Verdict("", {"b": "this owner is not degraded"})


def test_no_yield_by_claim_during_a_truce() -> None:
    verdict = judge({"b": CLAIM}, replace(BENCH, truce=True))
    assert verdict == Verdict("", {"b": "a lease was released by a claim not long ago"})


def test_a_truce_does_not_keep_an_owner_that_cannot_write_its_checkpoint() -> None:
    assert judge({"b": CLAIM}, replace(BENCH, truce=True, degraded=OWN)).successor == "b"


@pytest.mark.parametrize(
    ("reason", "own"),
    [
        (OWN, True),
        ("monitoring degraded: handoff NotADirectoryError", True),
        ("monitoring degraded: handoff TimeoutError", True),  # a disk that hangs
        ("monitoring degraded: handoff TypeError", False),  # a bug in what is handed on, which all share
        ("monitoring degraded: telemetry OSError", False),
        ("no answer", False),
        ("unheard", False),
        ("", False),
    ],
)
def test_only_what_fails_on_the_owners_own_disk_is_its_own_cause(reason: str, own: bool) -> None:
    assert is_own(reason) == own


def test_a_bad_claim_does_not_hide_a_good_one() -> None:
    assert judge({"a": CLAIM, "c": CLAIM}, BENCH).successor == "c"


# --- the truce -----------------------------------------------------------------------------------


def test_a_truce_lasts_60_s_and_doubles_to_10_min() -> None:
    truce, now, lengths = Truce(), 0.0, []
    for epoch in range(1, 8):
        truce.began(epoch, now)
        lengths.append(truce.until - now)
        assert truce.holds(truce.until - 0.001)
        assert not truce.holds(truce.until)
        now = truce.until + 1.0
    assert lengths == [60.0, 120.0, 240.0, 480.0, 600.0, 600.0, 600.0]


def test_hearing_of_one_yield_twice_is_one_truce() -> None:
    truce = Truce()
    truce.began(7, 0.0)
    truce.began(7, 30.0)
    truce.began(6, 30.0)
    assert truce.until == 60.0


def test_after_ten_quiet_minutes_a_truce_is_short_again() -> None:
    truce = Truce()
    truce.began(1, 0.0)
    truce.began(2, 60.0)
    truce.began(3, 180.0 + 600.5)
    assert truce.until == 180.0 + 600.5 + 60.0


def test_in_a_truce_only_who_did_not_yield_claims_and_only_for_the_owners_own_cause() -> None:
    successor, former = Truce(), Truce()
    successor.began(7, 0.0)
    former.began(7, 0.0, by_us=True)
    for truce, own, shared in ((successor, False, True), (former, True, True)):
        assert truce.silences(OWN, 59.0) == own
        assert truce.silences(SHARED, 59.0) == shared
        assert not truce.silences(OWN, 60.0) and not truce.silences(SHARED, 60.0)


def test_who_yielded_keeps_still_until_the_truces_that_follow_each_other_are_over() -> None:
    truce = Truce()
    truce.began(7, 0.0, by_us=True)
    truce.began(8, 30.0)
    assert truce.silences(OWN, truce.until - 1.0)
    truce.began(9, truce.until + 1.0)
    assert not truce.silences(OWN, truce.until - 1.0)


# --- suspicion -----------------------------------------------------------------------------------


def test_an_owner_is_suspect_after_so_many_polls_in_a_row_without_control_ready() -> None:
    suspicion = Suspicion(3)
    for told in (None, PeerReady(False, 7, "monitoring degraded"), None):
        assert not suspicion.suspects
        suspicion.polled(7, told)
    assert suspicion.suspects
    assert suspicion.reason == "no answer"


def test_one_good_poll_or_another_owner_begins_anew() -> None:
    suspicion = Suspicion(2)
    suspicion.polled(7, None)
    suspicion.polled(7, PeerReady(True, 7))
    suspicion.polled(7, None)
    assert not suspicion.suspects
    suspicion.polled(8, None)
    assert not suspicion.suspects
    suspicion.polled(8, None)
    assert suspicion.suspects


# --- heard and unheard ---------------------------------------------------------------------------


def test_an_owner_is_unheard_when_no_live_standby_polled_for_2_t() -> None:
    hearing = Hearing(ttl_s=5.0)
    assert not hearing.unheard(("b",), 10.0, since=0.0)
    assert hearing.unheard(("b",), 10.1, since=0.0)
    hearing.heard("b", 10.0, known=("b", "c"))
    assert not hearing.unheard(("b", "c"), 20.0, since=0.0)
    assert hearing.unheard(("b", "c"), 20.1, since=0.0)
    assert hearing.unheard(("c",), 15.0, since=0.0), "the poll was another's"


def test_an_owner_without_live_standbys_is_not_unheard() -> None:
    assert not Hearing(ttl_s=5.0).unheard((), 1e6, since=0.0)


def test_polls_of_strangers_are_not_kept() -> None:
    hearing = Hearing(ttl_s=5.0)
    for number in range(1000):
        hearing.heard(f"x{number}", 1.0, known=("b",))
    assert len(hearing._polls) == 0
