"""What both legs share: how engines are reached, where one leg runs, whose fault its end is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from narwhal.clock import Clock
from narwhal.errors import EngineError, RequestExpired
from narwhal.model.engine import Leg
from narwhal.model.request import Deadline, InferenceRequest
from narwhal.model.settings import EngineSettings
from narwhal.ports import Dialect, EngineCall, EngineClient


@dataclass(frozen=True, slots=True)
class EngineAccess:
    """The data plane as serving uses it."""

    client: EngineClient
    dialect: Dialect
    clock: Clock
    settings: EngineSettings


# Not frozen, like all that is made several times a request: a frozen one costs thrice as much to make.
@dataclass(slots=True)
class Place:
    """Where and as what one leg runs: engine, our request ID there, the request's deadline.

    `permit` is asked right before the bytes leave; what it raises ends the leg unsent.
    """

    iid: str
    rid: str
    deadline: Deadline
    permit: Callable[[], None] | None = None


def new_engine_rid() -> str:
    """A fresh request ID for one leg or count: 32 hexadecimal digits.

    An engine builds the `id` that clients see from it, so it tells nothing: no router, no engine, no
    attempt, no client.
    """
    return os.urandom(16).hex()


@dataclass(slots=True)
class Ask:
    """What is sent: the leg it belongs to, the route, the body."""

    leg: Leg
    path: str
    body: bytes


def engine_call(
    access: EngineAccess, request: InferenceRequest, *, place: Place, ask: Ask, limit_s: float
) -> EngineCall:
    """A POST that ends after `limit_s` seconds, with all that precedes it inside the same limit."""
    return EngineCall(
        iid=place.iid,
        method="POST",
        path=ask.path,
        leg=ask.leg,
        rid=place.rid,
        body=ask.body,
        traceparent=request.traceparent,
        connect_s=min(access.settings.connect_timeout_s, limit_s),
        pool_s=min(access.settings.pool_timeout_s, limit_s),
        total_s=limit_s,
        permit=place.permit,
    )


NEAR_S = 0.05
"""Engine clients look at their limits in steps of this: so near to the deadline, it is the deadline."""


def blamed(error: EngineError, leg: Leg, *, place: Place, now: float) -> EngineError | RequestExpired:
    """The error of a leg with engine and leg named; a timeout at the request's own deadline is no fault."""
    if error.timed_out and place.deadline.passed(now + NEAR_S):
        return RequestExpired("the request's deadline passed")
    error.iid = error.iid or place.iid
    error.leg = leg.value
    return error
