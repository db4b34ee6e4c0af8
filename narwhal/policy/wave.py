"""The whole fleet's maintenance: the wave that is on, or why one is necessary. Pure.

| state | event | next |
| --- | --- | --- |
| off | require | required: the whole fleet is out of placement |
| required | require | the same, the first reason stays |
| draining, recovering | require | the same: the wave that is on is what it takes |
| off, required | drain | draining, under the new ID |
| draining, recovering | drain | the same, under its own ID |
| recovering | interrupt | draining: a drain ended its readmission |
| draining, recovering | begin | recovering: its readmission runs, or was blocked |
| recovering | block | the same, with the sentence |
| recovering | complete | off |
| any | restored | as the handoff tells; what cannot be read is required |

There is one way from a held fleet to a serving one: a wave that is completed. Its members are all engines of
the fleet; their records are those of `narwhal.policy.drain`, and `narwhal.policy.upkeep` moves both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from narwhal.errors import InvariantViolation
from narwhal.model.maintenance import WaveState
from narwhal.model.plain_text import shown
from narwhal.policy.drain import IllegalMove

UNREADABLE = "the wave of another owner could not be read"

_ON = frozenset({WaveState.DRAINING, WaveState.RECOVERING})


class Wave:
    """`wave_id` is None before the drain of a wave, `why` is "" unless something requires one.

    `reason`: why the fleet takes no work, in the words of `/ready`; "" while it may. A plain attribute, for
    every request asks for it. `error`: what blocked the newest readmission, a sentence, "" for nothing.
    """

    __slots__ = ("error", "reason", "state", "wave_id", "why")

    def __init__(self) -> None:
        self._put(WaveState.OFF)

    @property
    def on(self) -> bool:
        """A wave is drained or comes back."""
        return self.state in _ON

    # --- events ----------------------------------------------------------------------------------

    def require(self, why: str) -> bool:
        """Nothing but a wave brings the fleet back. `why`: a few words. False: it was so before."""
        if self.state is not WaveState.OFF:
            return False
        self._put(WaveState.REQUIRED, why=why)
        return True

    def drain(self, wave_id: str) -> bool:
        """False: a wave is on, which keeps its ID."""
        if self.on:
            return False
        self._put(WaveState.DRAINING, wave_id, why=self.why)
        return True

    def begin(self) -> None:
        """A readmission of all members begins."""
        self._demand(*_ON)
        self._put(WaveState.RECOVERING, self.wave_id, why=self.why)

    def interrupt(self) -> None:
        """A drain ends the readmission under way."""
        self._demand(WaveState.RECOVERING)
        self._put(WaveState.DRAINING, self.wave_id, why=self.why)

    def block(self, error: str) -> None:
        """The readmission ended without proof: the wave waits for the operator."""
        self._demand(WaveState.RECOVERING)
        self.error = error

    def complete(self) -> None:
        """Every member passed every check."""
        self._demand(WaveState.RECOVERING)
        self._put(WaveState.OFF)

    # --- what travels ----------------------------------------------------------------------------

    def export(self) -> dict[str, Any] | None:
        """Its own fields of a handoff's `lifecycle.wave`; None while it is off."""
        if self.state is WaveState.OFF:
            return None
        return {"id": self.wave_id, "state": self.state.value, "why": self.why}

    def restore(self, told: object) -> str:
        """Replaces everything by what a handoff tells. Why a wave is required that nobody required before, a
        few words; "" for none."""
        self._put(WaveState.OFF)
        if told is None:
            return ""
        row = told if isinstance(told, Mapping) else {}
        wave_id, state, why = row.get("id"), row.get("state"), row.get("why")
        words = shown(why) if isinstance(why, str) else ""
        if state in _ON and isinstance(wave_id, str) and wave_id:
            self._put(WaveState(state), wave_id, why=words)
            return ""
        self._put(WaveState.REQUIRED, why=words or UNREADABLE)
        return "" if state == WaveState.REQUIRED and words else self.why

    def check_invariants(self) -> None:
        if self.on != (self.wave_id is not None):
            raise InvariantViolation(f"a wave is {self.state} under the ID {self.wave_id}")
        if bool(self.reason) != (self.state is not WaveState.OFF):
            raise InvariantViolation(f"a wave is {self.state}, which says {self.reason!r}")

    # --- inside ----------------------------------------------------------------------------------

    def _demand(self, *states: WaveState) -> None:
        if self.state not in states:
            raise IllegalMove(f"the wave is {self.state}")

    def _put(self, state: WaveState, wave_id: str | None = None, *, why: str = "") -> None:
        self.state = state
        self.wave_id = wave_id
        self.why = why
        self.error = ""
        self.reason = {
            WaveState.OFF: "",
            WaveState.REQUIRED: f"whole-wave restart required: {why}",
            WaveState.DRAINING: f"whole-wave drain {wave_id}",
            WaveState.RECOVERING: f"whole-wave recovery {wave_id}",
        }[state]
