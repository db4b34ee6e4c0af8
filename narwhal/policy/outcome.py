"""How a request ended, from what ended it (serving.md section 1.9). Pure.

| what ended it | outcome |
| --- | --- |
| nothing: the whole answer was written | served |
| the client left | cancelled |
| RequestError; an engine's 400, 413, 422 | invalid |
| Refused | refused |
| any other CapacityError before an engine leg was sent | rejected |
| DeadlineError | expired |
| the rest: engine faults, an engine's last 408, 429 or 5xx, bugs, a stream cut by our own end | failed |
"""

from __future__ import annotations

from narwhal.errors import CapacityError, DeadlineError, EngineRefused, Refused, RequestError
from narwhal.model.request import Outcome


def outcome_of(error: BaseException | None, *, client_left: bool, dispatched: bool) -> Outcome:
    """`dispatched`: a leg of this request has been sent to an engine."""
    if client_left and error is not None:
        return Outcome.CANCELLED
    match error:
        case None:
            return Outcome.SERVED
        case RequestError():
            return Outcome.INVALID
        case EngineRefused(about_the_request=True):
            return Outcome.INVALID
        case Refused():
            return Outcome.REFUSED
        case CapacityError() if not dispatched:
            return Outcome.REJECTED
        case DeadlineError():
            return Outcome.EXPIRED
        case _:
            return Outcome.FAILED
