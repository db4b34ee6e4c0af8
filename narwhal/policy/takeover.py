"""The opening plan of a new owner: which saved state to begin with, and how old it is (cluster.md section 6).

Pure. Candidates are the mirror, the stored document and the checkpoint; the newest valid one by (epoch, n)
wins. Of two that reach equally far it is the stored document: it holds all up to there, and what no entry
told before it. Ages shorten holds and choose the careful opening; they never decide ownership.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from narwhal.errors import SavedStateError
from narwhal.model.handoff import (
    LOG_START,
    CheckpointRecord,
    HandoffDocument,
    LogPosition,
    StoredHandoff,
)
from narwhal.policy.handoff_codec import at_age, decode, salvage

STORE = "store"
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class SavedState:
    """One candidate. `upto` is the log applied; `age_s` None where nobody knows."""

    source: str
    document: HandoffDocument
    upto: LogPosition
    age_s: float | None

    @property
    def order(self) -> tuple[int, int]:
        """(epoch, n applied). A document's own epoch counts where its log position is of an older one."""
        top = max(self.upto, LogPosition(self.document.epoch, 0))
        return (top.epoch, top.n)


@dataclass(frozen=True, slots=True)
class OpeningPlan:
    """`state` is None where nothing is saved: the configured split. `keep_roles`: false at a start
    without `--resume` that followed no owner. `cautious`: the state is older than allowed, or of unknown
    age. `verify`: this process followed no owner, so it has yet to see what the engines are. `notes` are
    sentences for the log."""

    state: SavedState | None
    keep_roles: bool
    cautious: bool
    notes: tuple[str, ...] = ()
    verify: bool = True

    @property
    def upto(self) -> LogPosition:
        return self.state.upto if self.state else LOG_START


@dataclass(frozen=True, slots=True)
class PlanRules:
    """`engines`: the configured set. `max_age_s`: `--standby-max-handoff-age`; None: nobody else can have
    changed anything meanwhile, so no age is too great. `followed`: the owner that left it, until it ended.
    `foreign`: a document of none of our engines counts too, for it says that the fleet was another one."""

    engines: frozenset[str]
    max_age_s: float | None = 30.0
    keep_roles: bool = True
    followed: bool = False
    foreign: bool = False


def opening_plan(candidates: Iterable[SavedState], rules: PlanRules) -> OpeningPlan:
    """Chooses among what is saved. A document that shares no engine with ours is another fleet's."""
    notes: list[str] = []
    fitting: list[SavedState] = []
    for state in candidates:
        if not rules.foreign and rules.engines.isdisjoint(state.document.engines):
            notes.append(f"the {state.source}'s state is for other engines and is left")
        else:
            fitting.append(state)
    best = _newest(fitting)
    if best is None:
        return OpeningPlan(None, rules.keep_roles, cautious=False, notes=tuple(notes))
    if set(best.document.engines) != rules.engines:
        notes.append(f"the {best.source}'s engine set differs from ours: roles as configured")
    cautious = rules.max_age_s is not None and (best.age_s is None or best.age_s > rules.max_age_s)
    if cautious:
        age = "of unknown age" if best.age_s is None else f"{best.age_s:.0f} s old"
        notes.append(f"the {best.source}'s state is {age}: every engine owes a good health check")
    return OpeningPlan(best, rules.keep_roles, cautious, tuple(notes), verify=not rules.followed)


def _newest(states: Iterable[SavedState]) -> SavedState | None:
    """The newest one, None of none. Where its age is unknown, that of another that reaches as far counts."""
    ranked = sorted(states, key=lambda state: (state.order, state.source == STORE), reverse=True)
    if not ranked:
        return None
    equal = [state for state in ranked if state.order == ranked[0].order]
    age_s = next((state.age_s for state in equal if state.age_s is not None), None)
    return replace(ranked[0], age_s=age_s)


def from_store(stored: StoredHandoff) -> SavedState:
    """The stored document. Its age is Redis time less `at_ms`, within the incarnation that wrote it.

    Raises SavedStateError if it is torn or cannot be read.
    """
    if not stored.intact:
        raise SavedStateError("stored handoff: document is torn (crc32 differs)")
    known = stored.written_inc == stored.inc and stored.now_ms >= stored.at_ms
    age_s = (stored.now_ms - stored.at_ms) / 1000 if known else None
    return SavedState(STORE, decode(stored.document, source="stored handoff"), stored.upto, age_s)


def from_checkpoint(record: CheckpointRecord, *, boot_id: str, now: float) -> SavedState:
    """The local file. Its age is known on the same boot only. Raises SavedStateError."""
    same_boot = record.boot_id != "" and record.boot_id == boot_id and now >= record.boottime_s
    document = decode(record.document, source=record.source)
    age_s = now - record.boottime_s if same_boot else None
    return SavedState(CHECKPOINT, document, LogPosition(document.epoch, record.applied_n), age_s)


def salvaged(error: SavedStateError, *, source: str, upto: LogPosition = LOG_START) -> SavedState | None:
    """What is left of a state with a field of a wrong type, read safely: better than nothing, where nothing
    better is left, and never more than that. Its age counts as unknown. None: nothing is left."""
    document = salvage(error.fields) if error.fields is not None else None
    return None if document is None else SavedState(source, document, upto, None)


def grown_older(state: SavedState) -> SavedState:
    """The same state as of now: remaining times shortened by its age, in full where that is unknown."""
    return replace(state, document=at_age(state.document, state.age_s or 0.0), age_s=state.age_s and 0.0)


def without_roles(state: SavedState) -> SavedState:
    """The same state less its roles: the configured split is kept."""
    return replace(state, document=replace(state.document, roles={}))
