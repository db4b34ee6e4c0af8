"""Lease tokens, and what holds one, are in no text that may reach a log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from narwhal.cluster.gate import Grip
from narwhal.errors import InvariantViolation
from narwhal.model.handoff import EntryKind, LogPosition
from narwhal.model.lease import (
    Acquired,
    LeaseVersion,
    OwnerMeta,
    Reinstated,
    Renewed,
)
from narwhal.model.legacy import ToldToken
from narwhal.model.settings import LeaseTimings
from narwhal.model.store_call import AcquireRequest, AppendRequest, PublishRequest, RenewRequest
from narwhal.policy.intents import (
    Acquire,
    AskPledges,
    Extended,
    Fenced,
    Granted,
    Inputs,
    Release,
    Released,
    Renew,
)
from narwhal.policy.tenure import Reclaim, Tenure
from tests.unit.policy.election_rig import HELD, Rig

SECRET = "5ec4e7" * 5
RECLAIM = Reclaim(SECRET, "inc", 4.0)


@pytest.mark.parametrize(
    "shown",
    [
        Acquire(SECRET, LeaseVersion(SECRET, 1), "inc", 7),
        Renew(SECRET, 7, 1, f"inc/{SECRET}:0"),
        Release(SECRET, "yield"),
        AskPledges(SECRET, 7),
        Granted(SECRET, 7, 4.0),
        Extended(SECRET, 4.0),
        Fenced(SECRET, "why"),
        Released(SECRET, True),
        Acquired(7, f"inc/{SECRET}:0"),
        Renewed(f"inc/{SECRET}:0", {}),
        Reinstated(f"inc/{SECRET}:0"),
        replace(HELD, version=LeaseVersion(SECRET, 4), fields={"token": SECRET}),
        Tenure(Acquire(SECRET, LeaseVersion("x", 1), "inc", 7), LeaseTimings(), 0.0, 0.0, RECLAIM, 7, SECRET),
        RECLAIM,
        AcquireRequest(SECRET, OwnerMeta("r0", ""), LeaseVersion(SECRET, 1), inc="i", floor=7, ttl_ms=5000),
        RenewRequest(SECRET, OwnerMeta("r0", ""), 7, seq=1, life=SECRET, ttl_ms=5000),
        PublishRequest(SECRET, 7, 1, upto=LogPosition(7, 1), document=b""),
        AppendRequest(SECRET, LogPosition(7, 2), EntryKind.DELTA, {}),
        Grip(SECRET, 7, "r0:x", 4.0),
        Inputs(SECRET, "nonce", 0.0),
        ToldToken(SECRET, 7),
    ],
    ids=lambda shown: type(shown).__name__,
)
def test_no_text_of_a_value_shows_the_token(shown: object) -> None:
    assert SECRET not in repr(shown)


def test_a_machine_that_is_asked_twice_names_the_call_without_its_token() -> None:
    rig = Rig()
    token = rig.to_acquire(10.0).token
    with pytest.raises(InvariantViolation, match=r"^Acquire is unanswered$") as caught:
        rig.next(10.1)
    assert token not in str(caught.value)


def test_an_answer_without_a_call_is_named_without_what_it_holds() -> None:
    rig = Rig()
    with pytest.raises(InvariantViolation, match=r"^an answer \(LeaseView\) without a call$"):
        rig.answer(HELD)
