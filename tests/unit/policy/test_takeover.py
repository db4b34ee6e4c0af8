"""The opening plan: which saved state a new owner begins with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from narwhal.errors import SavedStateError
from narwhal.model.handoff import CheckpointRecord, HandoffDocument, LogPosition, StoredHandoff
from narwhal.policy.handoff_codec import encode, to_fields
from narwhal.policy.takeover import (
    PlanRules,
    SavedState,
    from_checkpoint,
    from_store,
    opening_plan,
    without_roles,
)

DOCUMENT = HandoffDocument(
    at=1.0, run="r", model="m", epoch=7, holder="h", engines=("e0", "e1"), roles={"e0": "prefill"}
)
RULES = PlanRules(engines=frozenset(("e0", "e1")))
STORED = StoredHandoff(
    epoch=7, seq=3, upto=LogPosition(7, 9), at_ms=10_000, now_ms=12_500, schema_version=1,
    document=encode(DOCUMENT), inc="i", intact=True, written_inc="i",
)  # fmt: skip


def saved(source: str, epoch: int, n: int, age_s: float | None = 1.0) -> SavedState:
    return SavedState(source, replace(DOCUMENT, epoch=epoch), LogPosition(epoch, n), age_s)


@pytest.mark.parametrize(
    ("states", "winner"),
    [
        ([saved("mirror", 7, 4), saved("store", 7, 9)], "store"),
        ([saved("mirror", 8, 1), saved("store", 7, 9)], "mirror"),
        ([saved("checkpoint", 9, 1), saved("mirror", 8, 5), saved("store", 7, 9)], "checkpoint"),
        ([saved("mirror", 7, 9), saved("store", 7, 9)], "store"),
        ([saved("store", 7, 9), saved("checkpoint", 7, 9)], "store"),
        ([saved("store", 7, 9), saved("mirror", 7, 10)], "mirror"),
    ],
)
def test_the_newest_by_epoch_and_n_wins(states: list[SavedState], winner: str) -> None:
    plan = opening_plan(states, RULES)
    assert plan.state is not None and plan.state.source == winner
    assert plan.upto == plan.state.upto


@pytest.mark.parametrize(("told", "taken"), [(None, 4.0), (2.5, 2.5)])
def test_a_stored_document_of_unknown_age_is_as_old_as_the_mirror_that_reaches_as_far(
    told: float | None, taken: float
) -> None:
    """A restarted server cannot tell the age of what it kept, who has read it can."""
    plan = opening_plan([saved("mirror", 7, 9, 4.0), saved("store", 7, 9, told)], RULES)
    assert plan.state is not None
    assert (plan.state.source, plan.state.age_s) == ("store", taken)


def test_an_age_is_taken_over_only_from_a_state_that_reaches_as_far() -> None:
    plan = opening_plan([saved("mirror", 7, 8, 4.0), saved("store", 7, 9, None)], RULES)
    assert plan.state is not None and plan.state.age_s is None


def test_nothing_saved_is_a_fresh_opening() -> None:
    plan = opening_plan([], RULES)
    assert (plan.state, plan.cautious, plan.upto) == (None, False, LogPosition())


@pytest.mark.parametrize(
    ("age_s", "max_age_s", "cautious", "words"),
    [
        (29.9, 30.0, False, ""),
        (30.1, 30.0, True, "30 s old"),
        (None, 30.0, True, "unknown age"),
        (None, None, False, ""),
        (1e9, None, False, ""),
    ],
)
def test_old_state_and_state_of_unknown_age_is_taken_with_caution(
    age_s: float | None, max_age_s: float | None, cautious: bool, words: str
) -> None:
    plan = opening_plan([saved("store", 7, 9, age_s)], replace(RULES, max_age_s=max_age_s))
    assert plan.state is not None and plan.keep_roles
    assert plan.cautious is cautious
    assert [words in note for note in plan.notes] == ([True] if cautious else [])


def test_state_for_other_engines_is_left_and_told() -> None:
    plan = opening_plan([saved("store", 9, 9)], PlanRules(engines=frozenset(("x",))))
    assert plan.state is None
    assert "other engines" in plan.notes[0]


def test_a_partly_different_engine_set_is_taken_and_told() -> None:
    plan = opening_plan([saved("store", 9, 9)], PlanRules(engines=frozenset(("e0", "e9"))))
    assert plan.state is not None
    assert "engine set differs" in plan.notes[0]


@pytest.mark.parametrize(("age_s", "cautious"), [(0.0, False), (30.0, False), (30.1, True), (None, True)])
def test_old_or_of_unknown_age_is_cautious(age_s: float | None, cautious: bool) -> None:
    assert opening_plan([saved("mirror", 7, 1, age_s)], RULES).cautious is cautious


def test_a_stored_documents_age_is_redis_time_within_one_incarnation() -> None:
    assert from_store(STORED).age_s == 2.5
    assert from_store(replace(STORED, inc="another")).age_s is None
    assert from_store(replace(STORED, written_inc="")).age_s is None
    assert from_store(replace(STORED, now_ms=9_000)).age_s is None


def test_a_torn_stored_document_is_refused() -> None:
    with pytest.raises(SavedStateError, match="torn"):
        from_store(replace(STORED, intact=False))


@pytest.mark.parametrize(
    ("boot_id", "now", "age_s"), [("b", 105.0, 5.0), ("c", 105.0, None), ("b", 99.0, None)]
)
def test_a_checkpoints_age_is_known_on_the_same_boot_only(
    boot_id: str, now: float, age_s: float | None
) -> None:
    record = CheckpointRecord(to_fields(DOCUMENT), applied_n=4, boot_id="b", boottime_s=100.0)
    state = from_checkpoint(record, boot_id=boot_id, now=now)
    assert (state.age_s, state.upto) == (age_s, LogPosition(7, 4))


def test_a_wrong_checkpoint_is_named_by_its_file() -> None:
    record = CheckpointRecord({**to_fields(DOCUMENT), "epoch": "7"}, source="/var/lib/state.json")
    with pytest.raises(SavedStateError, match=r"^/var/lib/state\.json: epoch"):
        from_checkpoint(record, boot_id="b", now=1.0)


def test_an_unknown_boot_is_no_boot() -> None:
    record = CheckpointRecord(to_fields(DOCUMENT), boot_id="", boottime_s=1.0)
    assert from_checkpoint(record, boot_id="", now=2.0).age_s is None


def test_without_roles_everything_else_is_kept() -> None:
    state = without_roles(saved("store", 7, 9))
    assert (state.document.roles, state.document.engines) == ({}, ("e0", "e1"))
