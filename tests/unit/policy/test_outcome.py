"""Exactly one outcome a request, whatever ended it."""

from __future__ import annotations

import asyncio

import pytest

from narwhal import errors
from narwhal.model.request import Outcome
from narwhal.policy.outcome import outcome_of


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, Outcome.SERVED),
        (errors.BadRequest("x"), Outcome.INVALID),
        (errors.UnknownModel("x"), Outcome.INVALID),
        (errors.TooLarge("x"), Outcome.INVALID),
        (errors.RequestIncomplete("x"), Outcome.INVALID),
        (errors.Refused("x"), Outcome.REFUSED),
        (errors.Overloaded("x"), Outcome.REJECTED),
        (errors.NotOwner("x"), Outcome.REJECTED),
        (errors.NoEngine("x"), Outcome.REJECTED),
        (errors.NoSchedulableEngine("x"), Outcome.REJECTED),
        (errors.QueueExpired("x"), Outcome.EXPIRED),
        (errors.RequestExpired("x"), Outcome.EXPIRED),
        (errors.HandoffExpired("x"), Outcome.EXPIRED),
        (errors.EngineUnreachable("x"), Outcome.FAILED),
        (errors.EngineTimeout("x"), Outcome.FAILED),
        (errors.StreamBroken("x"), Outcome.FAILED),
        (errors.PoolExhausted("x"), Outcome.FAILED),
        *((errors.EngineRefused("x", status=code), Outcome.INVALID) for code in (400, 413, 422)),
        *((errors.EngineRefused("x", status=code), Outcome.FAILED) for code in (401, 404, 408, 429, 500)),
        (RuntimeError("a bug"), Outcome.FAILED),
        (asyncio.CancelledError(), Outcome.FAILED),
    ],
)
def test_what_ended_a_request_names_its_outcome(error, outcome):
    assert outcome_of(error, client_left=False, dispatched=False) is outcome


def test_a_client_that_left_cancelled_its_request():
    assert outcome_of(asyncio.CancelledError(), client_left=True, dispatched=True) is Outcome.CANCELLED


def test_capacity_that_ends_after_dispatch_is_a_failure():
    assert outcome_of(errors.NoEngine("x"), client_left=False, dispatched=True) is Outcome.FAILED
