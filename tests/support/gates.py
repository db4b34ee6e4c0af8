"""A gate as an owner in a cluster has it: engines may know a higher epoch."""

from __future__ import annotations

from dataclasses import dataclass, field

from narwhal.cluster.local import LocalGate

UNBELIEVABLE = 2**40


@dataclass
class Owner(LocalGate):
    """In control under `own` until an engine knows a higher epoch."""

    own: int = 5
    told: list[tuple[str, int]] = field(default_factory=list)
    shutting_down: bool = False

    def may_admit(self, now: float) -> bool:
        return not any(self._believed(epoch) for _, epoch in self.told)

    def refusal(self, now: float) -> str:
        return "" if self.may_admit(now) else "fenced: an engine knows more"

    @property
    def epoch(self) -> int:
        return self.own

    def overruled(self, iid: str, epoch: int) -> bool:
        self.told.append((iid, epoch))
        return self._believed(epoch)

    def _believed(self, epoch: int) -> bool:
        return self.own < epoch < UNBELIEVABLE
