"""One router without a shared store: always in control, epoch 0, a file as its only memory."""

from __future__ import annotations

from narwhal.clock import Clock
from narwhal.cluster.gate import SHUTTING_DOWN
from narwhal.cluster.publisher import Blocking
from narwhal.cluster.state import OwnState
from narwhal.errors import SavedStateError
from narwhal.model.cluster_view import ClusterStatus, LeaseStatus, RouterStatus
from narwhal.model.control import ControlStatus, OwnerRef, RouterState
from narwhal.model.handoff import CheckpointRecord
from narwhal.model.lease import PublishReply
from narwhal.policy.handoff_codec import to_fields
from narwhal.policy.takeover import (
    CHECKPOINT,
    PlanRules,
    SavedState,
    from_checkpoint,
    opening_plan,
    salvaged,
)
from narwhal.ports import Checkpoint


class LocalGate:
    """ControlGate without a shared store: epoch 0, holder "", in control until shutdown."""

    def __init__(self) -> None:
        self.shutting_down = False

    @property
    def epoch(self) -> int:
        return 0

    @property
    def holder(self) -> str:
        return ""

    def may_admit(self, now: float) -> bool:
        return not self.shutting_down

    def refusal(self, now: float) -> str:
        return SHUTTING_DOWN if self.shutting_down else ""

    def overruled(self, iid: str, epoch: int) -> bool:
        """Without a cluster nothing is stamped, so no engine can tell."""
        return False

    async def decided(self, timeout_s: float) -> None:
        """Nothing is ever open here."""


class LocalView:
    """ControlView without a shared store: this router alone."""

    def __init__(self, gate: LocalGate, *, me: OwnerRef, version: str) -> None:
        self._gate = gate
        self._me = me
        self._version = version

    def status(self, now: float) -> ControlStatus:
        state = RouterState.DRAINING if self._gate.shutting_down else RouterState.OWNER
        return ControlStatus(
            state=state,
            epoch=0,
            holder="",
            may_admit=self._gate.may_admit(now),
            owner=self._me,
            shutting_down=self._gate.shutting_down,
        )

    def lease_valid_s(self, now: float) -> float | None:
        return None

    def cluster(self, now: float) -> ClusterStatus:
        status = self.status(now)
        router = RouterStatus(
            router_id=self._me.router_id,
            url=self._me.url,
            role=status.role.value,
            epoch=0,
            mirror_age_s=None,
            version=self._version,
            ready_to_take=False,
            drift=(),
            seen_s=0.0,
            control_url=self._me.orders_url,
        )
        return ClusterStatus(LeaseStatus("local"), (router,), (), status.store)


class LocalPublisher:
    """StatePublisher without a shared store: the checkpoint file only."""

    def __init__(self, checkpoint: Checkpoint, state: OwnState, *, clock: Clock, blocking: Blocking) -> None:
        self._checkpoint = checkpoint
        self._state = state
        self._clock = clock
        self._blocking = blocking
        self._seq = 0

    def open(self, *, resume: bool) -> tuple[str, ...]:
        """Begins with the file: all of it with `resume`, else all but the roles. Sentences for the log.

        Raises SavedStateError if the file cannot be read and `resume` asks for it.
        """
        try:
            record = self._checkpoint.read()
            saved = self._saved(record)
        except SavedStateError as error:
            if resume:
                raise
            return self._open_safely(error)
        if saved is None or record is None:
            return ("there is no saved state: starting fresh",) if resume else ()
        rules = PlanRules(
            engines=frozenset(self._state.identity.engines),
            max_age_s=None,
            keep_roles=resume,
            foreign=resume and self._state.contracted,
        )
        self._state.remember(saved, record.totals)
        return self._state.restore(opening_plan([saved], rules))

    def _open_safely(self, error: SavedStateError) -> tuple[str, ...]:
        """With what can be read of a file that has a wrong type: nobody is placed on because of it."""
        engines, saved = frozenset(self._state.identity.engines), salvaged(error, source=CHECKPOINT)
        if saved is None or engines.isdisjoint(saved.document.engines):
            return (f"the saved state is left: {error}",)
        plan = opening_plan([saved], PlanRules(engines, max_age_s=0.0, keep_roles=False))
        return (f"the saved state is damaged, and taken with care: {error}", *self._state.restore(plan))

    def _saved(self, record: CheckpointRecord | None) -> SavedState | None:
        if record is None or not record.document:
            return None
        return from_checkpoint(record, boot_id=self._state.identity.boot_id, now=self._clock.now())

    async def snapshot(self) -> PublishReply | None:
        return None

    async def checkpoint(self) -> None:
        """Writes the local file. Raises OSError."""
        self._seq += 1
        record = CheckpointRecord(
            document=to_fields(self._state.compose(epoch=0, holder="")),
            seq=self._seq,
            boot_id=self._state.identity.boot_id,
            boottime_s=self._clock.now(),
            totals=self._state.runs(),
        )
        await self._blocking(lambda: self._checkpoint.write(record))
