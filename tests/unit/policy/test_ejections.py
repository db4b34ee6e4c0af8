"""Who is out, when it is looked at, when it returns: alone, or together where a contracted fleet lost all."""

from __future__ import annotations

from narwhal.model.evidence import Check
from narwhal.model.standing import EjectionView
from narwhal.policy.ejections import CARRIED, Ejections
from narwhal.policy.pace import Pace

GOOD = (Check("health", "passed"), Check("final_health", "passed"))


def out(*iids: str) -> Ejections:
    ejections = Ejections(pace=Pace(10, 1.0))
    for iid in iids:
        assert ejections.eject(iid, "3 connection failures", now=100.0)
    return ejections


def failing(name: str, detail: str) -> tuple[Check, ...]:
    return (Check("attestation", "skipped", "no contract"), Check(name, "failed", detail))


def test_the_first_reason_stays_and_the_cadence_begins_with_the_ejection() -> None:
    ejections = out("e0")
    assert not ejections.eject("e0", "another", now=105.0)
    assert [at for at in range(100, 131) if ejections.due(float(at))] == [110, 120, 130]
    gone = ejections.drop("e0")
    assert gone is not None
    assert gone.reason == "3 connection failures"


def test_a_look_that_was_due_while_the_one_before_it_ran_is_late_and_not_lost() -> None:
    ejections = out("e0")
    assert [at for at in range(100, 125) if ejections.due(float(at))] == [110, 120]
    ejections.looked("e0", 124.0)
    assert [at for at in range(124, 140) if ejections.due(float(at))] == [124, 134]


def test_one_that_ends_before_its_next_turn_changes_nothing() -> None:
    ejections = out("e0")
    assert ejections.due(110.0) == ("e0",)
    ejections.looked("e0", 115.0)
    ejections.looked("e1", 115.0)
    assert [at for at in range(115, 141) if ejections.due(float(at))] == [120, 130, 140]


def test_what_failed_is_told_once_until_it_is_another_or_the_engine_was_valid() -> None:
    ejections = out("e0")
    assert ejections.failed("e0", failing("health", "refused"))
    assert not ejections.failed("e0", failing("health", "refused"))
    assert ejections.failed("e0", failing("model", "no such model"))
    ejections.passed("e0", GOOD, now=100.0)
    assert ejections.failed("e0", failing("model", "no such model"))
    assert not ejections.failed("e1", failing("model", "never out"))


NOBODY: frozenset[str] = frozenset()


def test_who_is_dropped_is_in_again() -> None:
    ejections = out("d0", "d1")
    assert ejections.drop("d0") is not None
    assert ejections.drop("d0") is None
    assert ejections.engines() == ("d1",)


def test_the_valid_ones_wait_until_all_are_valid() -> None:
    ejections = out("d0", "p0")
    assert ejections.passed("d0", GOOD, now=110.0)
    assert not ejections.passed("d0", GOOD, now=111.0)
    assert not ejections.passed("never", GOOD, now=111.0)
    assert ejections.cohort(169.0, drained=NOBODY) == ()
    ejections.passed("p0", GOOD, now=169.5)
    assert ejections.cohort(169.5, drained=NOBODY) == ("d0", "p0")
    assert ejections.engines() == ("d0", "p0"), "what they show together decides"


def test_who_waits_shows_the_checks_that_it_passed_and_not_an_older_failure() -> None:
    ejections = out("d0", "p0")
    ejections.failed("d0", failing("health", "refused"))
    ejections.passed("d0", GOOD, now=110.0)
    seen = ejections.view()["d0"]
    assert (seen.step, seen.checks) == ("", GOOD)
    assert seen.sentence == (
        "ejected: 3 connection failures; every check passed, it waits for the others that are out"
    )
    ejections.look_again(("d0",), 111.0)
    assert ejections.view()["d0"].sentence == "ejected: 3 connection failures"


def test_sixty_seconds_after_the_first_one_the_valid_ones_wait_no_longer() -> None:
    ejections = out("d0", "d1", "p0")
    ejections.passed("d0", GOOD, now=110.0)
    ejections.passed("d1", GOOD, now=140.0)
    assert ejections.cohort(169.9, drained=NOBODY) == ()
    assert ejections.cohort(170.0, drained=NOBODY) == ("d0", "d1")


def test_a_drained_engine_is_nobody_to_wait_for() -> None:
    ejections = out("d0", "d1", "p0")
    ejections.passed("d0", GOOD, now=110.0)
    ejections.passed("d1", GOOD, now=110.0)
    assert ejections.cohort(111.0, drained={"p0"}) == ("d0", "d1")
    assert ejections.cohort(111.0, drained={"d1"}) == ()
    assert ejections.valid({"d1"}) == ("d0",)


def test_one_that_fails_a_later_check_waits_no_longer_and_its_time_goes_with_it() -> None:
    ejections = out("d0", "d1", "p0")
    ejections.passed("d0", GOOD, now=110.0)
    ejections.passed("d1", GOOD, now=140.0)
    ejections.failed("d0", failing("health", "refused"))
    assert ejections.cohort(199.9, drained=NOBODY) == ()
    assert ejections.cohort(200.0, drained=NOBODY) == ("d1",)


def test_one_of_whom_nothing_was_shown_is_looked_at_again_at_once() -> None:
    ejections = out("d0", "d1")
    ejections.passed("d0", GOOD, now=105.0)
    ejections.look_again(("d0", "never"), 105.5)
    assert (ejections.valid(NOBODY), ejections.due(105.5)) == ((), ("d0",))


def test_restored_ejections_replace_what_was_and_are_due_at_once() -> None:
    ejections = out("e0")
    ejections.restore(("e1",), {"e1": "?", "e2": {}}, now=500.0)
    assert (ejections.engines(), ejections.due(500.0)) == (("e1",), ("e1",))
    assert ejections.view() == {"e1": EjectionView(CARRIED)}


def test_what_the_reason_says_already_is_not_told_twice() -> None:
    out = EjectionView("identity: last: the sidecar answers 503", "attestation", "the sidecar answers 503")
    assert out.sentence == (
        "ejected: identity: last: the sidecar answers 503; the check attestation fails in the same way"
    )
    assert EjectionView("identity", "model", "no such").sentence == "ejected: identity; model failed: no such"


def test_reason_and_failed_check_are_to_be_seen_and_travel() -> None:
    ejections, successor = out("e0"), out()
    checks = failing("model", "no such model")
    ejections.failed("e0", checks)
    assert ejections.view() == {"e0": EjectionView("3 connection failures", "model", "no such model", checks)}
    successor.restore(("e0",), ejections.export(), now=500.0)
    assert successor.view() == {"e0": EjectionView("3 connection failures", "model", "no such model")}
    assert not successor.failed("e0", checks), "it was told by the owner before"
