"""cluster/local.py: a router alone begins with its file, and says what it made of it."""

from __future__ import annotations

from typing import Any

import pytest

from narwhal.cluster.local import LocalPublisher
from narwhal.cluster.state import Identity, OwnState
from narwhal.errors import SavedStateError
from narwhal.model.engine import Role
from narwhal.model.handoff import CheckpointRecord
from narwhal.policy.fleet import Fleet
from narwhal.policy.handoff_codec import to_fields
from narwhal.policy.totals import Totals
from narwhal.store.memory import MemoryCheckpoint
from tests.support.settings import fleet_config
from tests.support.ticking import TickingClock
from tests.unit.cluster.cluster_rig import ENGINES, at_once

IDENTITY = Identity("r0", "run-2", "tiny", ("e0", "e1"), boot_id="boot")
SWAPPED = {"e0": "prefill", "e1": "decode"}


class Alone:
    def __init__(self, **config: Any) -> None:
        self.fleet = Fleet(fleet_config(*ENGINES, **config), {})
        clock = TickingClock()
        self.state = OwnState(self.fleet, Totals("run-2"), identity=IDENTITY, clock=clock)
        self.checkpoint = MemoryCheckpoint()
        self.publisher = LocalPublisher(self.checkpoint, self.state, clock=clock, blocking=at_once)

    def save(self, **fields: Any) -> None:
        document = to_fields(self.state.compose(epoch=0, holder=""))
        self.checkpoint.record = CheckpointRecord({**document, "run": "run-1", "roles": SWAPPED, **fields})


@pytest.mark.parametrize("resume", [True, False])
def test_the_saved_roles_are_taken_with_resume_only(resume: bool) -> None:
    alone = Alone()
    alone.save()
    assert alone.publisher.open(resume=resume) == ()
    assert (alone.fleet.roles() == {"e0": Role.PREFILL, "e1": Role.DECODE}) is resume


def test_a_contracted_fleet_whose_file_is_of_other_engines_waits_for_a_wave_at_a_resume_only() -> None:
    for resume in (True, False):
        alone = Alone(contract={"vllm_version": "0.32.0"})
        alone.save(engines=["x0", "x1"])
        notes = alone.publisher.open(resume=resume)
        held = "whole-wave restart required: the saved state is of another engine set"
        assert alone.fleet.upkeep.wave.reason == (held if resume else "")
        told = "the whole fleet is held" if resume else "is for other engines and is left"
        assert told in notes[-1]


def test_resume_without_a_file_says_that_it_starts_fresh() -> None:
    assert Alone().publisher.open(resume=True) == ("there is no saved state: starting fresh",)
    assert Alone().publisher.open(resume=False) == ()


def test_a_torn_file_stops_a_resume_and_no_plain_start() -> None:
    alone = Alone()
    alone.checkpoint.broken = SavedStateError("state.json is not a whole JSON document")
    with pytest.raises(SavedStateError, match="not a whole"):
        alone.publisher.open(resume=True)
    (note,) = alone.publisher.open(resume=False)
    assert note == "the saved state is left: state.json is not a whole JSON document"


def test_a_document_that_cannot_be_read_stops_a_resume_and_no_plain_start() -> None:
    alone = Alone()
    alone.save()
    assert alone.checkpoint.record is not None
    alone.checkpoint.record = CheckpointRecord({**alone.checkpoint.record.document, "roles": 1})
    with pytest.raises(SavedStateError, match="roles"):
        alone.publisher.open(resume=True)
    assert "roles" in alone.publisher.open(resume=False)[0]
