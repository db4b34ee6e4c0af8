"""One admitted request on its way through an attempt."""

from __future__ import annotations

from dataclasses import dataclass

from narwhal.model.placement import Demand
from narwhal.model.request import Deadline, InferenceRequest
from narwhal.ports import ClientStream
from narwhal.serving.ledger import Entry


# Not frozen, like all that is made several times a request: a frozen one costs thrice as much to make.
@dataclass(slots=True)
class Job:
    """What an attempt needs to know of the request."""

    entry: Entry
    request: InferenceRequest
    stream: ClientStream
    deadline: Deadline
    demand: Demand
