"""What a router's process leaves with its warden (cluster.md section 5)."""

from __future__ import annotations

from dataclasses import dataclass, field

from narwhal.model.request import Counters


@dataclass(frozen=True, slots=True)
class ToldToken:
    """A token that an acquire was about to be sent with. `floor`: the highest epoch that the router knew
    then; whatever that acquire gets is above it."""

    token: str = field(repr=False)
    floor: int


@dataclass(frozen=True, slots=True)
class Legacy:
    """`run` is the journal run ID, "" when the router never met the store. `counters` are that run's,
    absolute. `tokens`: the last two, newest first."""

    router_id: str = ""
    run: str = ""
    counters: Counters = field(default_factory=Counters)
    tokens: tuple[ToldToken, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.run
