"""Inference holds and timed quarantines: who is held when, and what travels."""

from __future__ import annotations

from math import inf

from narwhal.model.evidence import FailureClass
from narwhal.model.standing import HoldKind, HoldView
from narwhal.policy.carried_holds import told_quarantines
from narwhal.policy.holds import Holds
from narwhal.policy.quarantine import Cause, OfKv, OfRequest

NOW = 100.0


def test_an_inference_hold_lasts_until_it_is_ended() -> None:
    holds = Holds()
    assert holds.hold("e0", "three broken streams")
    assert not holds.hold("e0", "another reason")
    assert holds.on("e0", 10**9) is HoldKind.INFERENCE
    assert holds.view(NOW) == {"e0": HoldView(HoldKind.INFERENCE, "three broken streams", None)}
    assert holds.is_held("e0")
    assert holds.end("e0", HoldKind.INFERENCE)
    assert not holds.end("e0", HoldKind.INFERENCE)
    assert holds.on("e0", NOW) is None


def test_a_quarantine_ends_by_itself_at_its_instant() -> None:
    holds = Holds()
    assert holds.quarantine("e0", 105.0, reason="a leg failed", now=NOW)
    assert holds.on("e0", 104.999) is HoldKind.QUARANTINE
    assert holds.on("e0", 105.0) is None
    assert holds.next_end(NOW) == 105.0
    assert holds.next_end(105.0) == inf
    assert holds.expired(104.0) == ()
    assert holds.expired(105.0) == ("e0",)
    assert holds.expired(105.0) == ()


def test_another_failed_leg_extends_a_quarantine_and_never_shortens_it() -> None:
    holds = Holds()
    holds.quarantine("e0", 105.0, reason="first", now=NOW)
    assert not holds.quarantine("e0", 107.0, reason="second", now=102.0)
    assert not holds.quarantine("e0", 103.0, reason="third", now=102.5)
    assert holds.view(103.0) == {"e0": HoldView(HoldKind.QUARANTINE, "first", 4.0)}
    assert holds.quarantine("e0", 112.0, reason="after its end", now=107.0)
    assert holds.view(107.0)["e0"].reason == "after its end"


def test_a_quarantine_can_end_early() -> None:
    holds = Holds()
    holds.quarantine("e0", 105.0, reason="a leg failed", now=NOW)
    assert holds.end("e0", HoldKind.QUARANTINE)
    assert holds.on("e0", NOW) is None


def test_what_some_brought_is_taken_back_and_the_rest_lasts_for_its_own_time() -> None:
    holds = Holds()
    names = [OfRequest(name, "stream:silence") for name in (b"1", b"2", b"3")]
    kv = OfKv("p0", FailureClass.STREAM)
    one, two = Cause(names[0]), Cause(names[1])
    holds.quarantine("e0", 105.0, reason="first", now=NOW, cause=one)
    holds.quarantine("e0", 103.0, reason="second", now=NOW, cause=two)
    holds.quarantine("e0", 104.0, reason="third", now=NOW, cause=Cause(kv=kv))
    assert not holds.take_back("e9", kv)
    assert not holds.take_back("e0", names[2])
    assert not holds.take_back("e0", names[0])
    assert holds.view(NOW) == {"e0": HoldView(HoldKind.QUARANTINE, "second", 4.0)}
    assert not holds.take_back("e0", kv)
    assert holds.next_end(NOW) == 103.0
    assert holds.take_back("e0", names[1]), "it is to be ended"


def test_with_both_the_inference_hold_is_told_and_outlasts() -> None:
    holds = Holds()
    holds.quarantine("e0", 105.0, reason="a leg failed", now=NOW)
    holds.hold("e0", "three broken streams")
    assert holds.view(NOW)["e0"].kind is HoldKind.INFERENCE
    holds.expired(105.0)
    assert holds.on("e0", 105.0) is HoldKind.INFERENCE


def test_quarantines_travel_with_the_seconds_that_are_left() -> None:
    holds = Holds()
    holds.quarantine("e0", 105.0, reason="a leg failed", now=NOW)
    holds.quarantine("e1", 100.5, reason="short", now=NOW)
    holds.hold("e2", "held until probed")
    told = holds.export(101.0)
    assert told == {"e0": {"kind": "quarantine", "reason": "a leg failed", "remaining_s": 4.0}}
    assert told_quarantines(told) == {"e0": (4.0, "a leg failed")}


def test_told_holds_that_cannot_be_read_are_left_out() -> None:
    told = {
        "e0": {"remaining_s": 0},
        "e1": {"remaining_s": None},
        "e2": "long",
        "e3": {"remaining_s": inf},
        "e4": {"remaining_s": "3"},
        "e5": {"remaining_s": True},
    }
    assert told_quarantines(told) == {}


def test_cleared_holds_are_gone() -> None:
    holds = Holds()
    holds.quarantine("e0", 105.0, reason="a leg failed", now=NOW)
    holds.hold("e1", "held until probed")
    holds.clear()
    assert holds.view(NOW) == {}
