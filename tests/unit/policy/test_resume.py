"""May a contracted fleet go on with a saved state: each thing that must be alike, unlike once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from narwhal.model.handoff import HandoffDocument
from narwhal.policy.resume import FleetLikeness, unfit
from tests.support.settings import MODEL, handoff_document

OURS = FleetLikeness(frozenset({"e0", "e1"}), MODEL, "whole_wave")
LIFECYCLE = {"engine_restart_policy": "whole_wave", "process_starts": {"e0": 1.0, "e1": 2}, "records": []}


def document(**lifecycle: Any) -> HandoffDocument:
    return replace(handoff_document(e0="prefill", e1="decode"), lifecycle={**LIFECYCLE, **lifecycle})


def test_a_document_that_is_alike_in_everything_is_gone_on_with() -> None:
    assert unfit(document(), OURS) == ""


@pytest.mark.parametrize(
    ("saved", "why"),
    [
        (replace(document(), engines=("e0", "e2")), "the saved state is of another engine set"),
        (replace(document(), model="another"), "the saved state is of another model"),
        (
            document(engine_restart_policy="individual"),
            "engine_restart_policy was changed from 'individual' to whole_wave",
        ),
        (
            replace(document(), lifecycle={}),
            "engine_restart_policy was changed from 'individual' to whole_wave",
        ),
        (document(process_starts={"e0": 1.0}), "the saved state has no accepted process of e1"),
        (
            document(process_starts={"e0": True, "e1": "x"}),
            "the saved state has no accepted process of e0, e1",
        ),
        (document(process_starts=[1]), "the saved state has no accepted process of e0, e1"),
    ],
)
def test_what_is_unlike_is_named(saved: HandoffDocument, why: str) -> None:
    assert unfit(saved, OURS) == why


@pytest.mark.parametrize(
    "saved",
    [
        replace(document(process_starts={"e0": 1.0}), ejected=("e1",)),
        document(process_starts={"e0": 1.0}, records=[{"engine": "e1", "state": "drained"}, "what"]),
        document(process_starts={"e0": 1.0}, awaiting_identity=["e1"]),
    ],
)
def test_who_takes_no_requests_owes_its_proof_anyway(saved: HandoffDocument) -> None:
    assert unfit(saved, OURS) == ""
