"""The readmission checks of one engine, in order; the first that fails ends them (failures.md section 7).

A validation is a list of named steps, so that each occasion owes its own: an automatic readmission without
an engine contract skips `attestation` and `process`; a readmission after planned maintenance brings its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import orjson

from narwhal.errors import EngineError, IdentityError
from narwhal.model.evidence import Check, Validated
from narwhal.model.plain_text import shown
from narwhal.monitor.identity import CheckedProcesses, IdentityLooks
from narwhal.monitor.probe_legs import ProbeLegs, is_ours
from narwhal.policy.readmission import (
    ATTESTATION,
    FAILED,
    FINAL_HEALTH,
    GENERATION,
    HEALTH,
    KV_TRANSFER,
    MODEL,
    PASSED,
    PROCESS,
    SKIPPED,
    TransferPeers,
)

MODELS_PATH = "/v1/models"

Result = tuple[str, str]
"""Outcome and detail of a check."""
OPEN = "open"
"""Outcome of a check that could not be made, which says nothing of the engine; no document has it."""

ILL_S = 0.5
"""The health of a vLLM engine whose core has died says so after some 0.15 s (engines.md section 1)."""

_DETAIL_CHARS = 4096
"""Of one check: a contract has two dozen fields that may differ."""


@dataclass(frozen=True, slots=True)
class Step:
    """One named check. `run` takes an engine ID and gives outcome and detail; an EngineError is a failed
    check in its own words."""

    name: str
    run: Callable[[str], Awaitable[Result]]


class Validation:
    """Runs its steps on one engine at a time or on many. `start` tells the process that they found."""

    def __init__(
        self, steps: Sequence[Step], *, start: Callable[[str], float | None] = lambda iid: None
    ) -> None:
        self._steps = tuple(steps)
        self._start = start

    async def run(self, iid: str) -> Validated:
        """Never raises for what an engine does."""
        checks: list[Check] = []
        for step in self._steps:
            outcome, detail = await _result(step, iid)
            if outcome == OPEN:
                so_far = Validated(iid, tuple(checks), process_start=self._start(iid))
                return left_open(so_far, step.name, why=detail)
            checks.append(Check(step.name, outcome, shown(detail, most=_DETAIL_CHARS)))
            if outcome == FAILED:
                break
        return Validated(iid, tuple(checks), process_start=self._start(iid))


def left_open(told: Validated, name: str, *, why: str) -> Validated:
    """The checks so far, and the next one could not be made."""
    why = f"the check {name} could not be made ({shown(why, most=_DETAIL_CHARS)})"
    return replace(told, conclusive=False, why=why)


async def _result(step: Step, iid: str) -> Result:
    try:
        return await step.run(iid)
    except EngineError as error:
        return OPEN if is_ours(error) else FAILED, str(error)


@dataclass(frozen=True, slots=True)
class Checking:
    """What the checks are made with. `peers` tells whom an engine exchanges KV with, at that moment."""

    legs: ProbeLegs
    processes: CheckedProcesses
    model: str
    peers: Callable[[str], TransferPeers]


def readmission_steps(using: Checking, *, attestation: Step, process: Step) -> tuple[Step, ...]:
    """What an engine that is out owes."""
    legs = using.legs
    return (
        Step(HEALTH, partial(_health, using)),
        attestation,
        Step(MODEL, partial(_model, legs, model=using.model)),
        process,
        Step(GENERATION, partial(_generation, legs)),
        Step(KV_TRANSFER, partial(_kv_transfer, legs, peers=using.peers)),
        Step(FINAL_HEALTH, partial(_final_health, using)),
    )


def skipped(name: str, why: str) -> Step:
    """A check that is not owed, kept in the record with the reason."""

    async def skip(iid: str) -> Result:
        return SKIPPED, why

    return Step(name, skip)


NO_MAINTENANCE = skipped(PROCESS, "no planned maintenance: the running process is fine")
"""`process` after an ejection."""
NO_ATTESTATION = skipped(ATTESTATION, "the fleet has no engine contract")


def attested(looks: IdentityLooks, processes: CheckedProcesses) -> Step:
    """What a contracted fleet owes."""

    async def attest(iid: str) -> Result:
        try:
            seen = await looks.see(iid)
        except IdentityError as error:
            return FAILED, str(error)
        processes.found(iid, seen.live)
        return (FAILED, "; ".join(seen.unlike)) if seen.unlike else (PASSED, "")

    return Step(ATTESTATION, attest)


async def _health(using: Checking, iid: str) -> Result:
    using.processes.begin(iid)
    await using.legs.health(iid)
    return PASSED, ""


async def _final_health(using: Checking, iid: str) -> Result:
    """What was proved is of a process: another one that answers by now has proved nothing."""
    await using.legs.health(iid)
    try:
        other = await using.processes.changed(iid)
    except IdentityError as error:
        return FAILED, str(error)
    return (FAILED, f"another process answers: {other}") if other else (PASSED, "")


async def _model(legs: ProbeLegs, iid: str, *, model: str) -> Result:
    listed = listed_models(await legs.ask(iid, MODELS_PATH))
    if model in listed:
        return PASSED, ""
    return FAILED, f"lists {shown(', '.join(listed)) or 'no model'}, not {model}"


def listed_models(body: bytes) -> tuple[str, ...]:
    """IDs in an engine's model list; empty where the body is none."""
    try:
        return tuple(str(row["id"]) for row in orjson.loads(body)["data"])
    except (ValueError, KeyError, TypeError):
        return ()


async def _generation(legs: ProbeLegs, iid: str) -> Result:
    await legs.complete(iid)
    return PASSED, ""


# --- transfers ---------------------------------------------------------------------------------------

Legs = Callable[[str, str], Awaitable[None]]
"""From a producer to a consumer."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """How one went. `error` None: well."""

    producer: str
    consumer: str
    error: EngineError | None

    def __str__(self) -> str:
        return f"{self.producer} -> {self.consumer}" + (f": {self.error}" if self.error else "")

    def tells_of(self, iid: str) -> bool:
        """It failed by this engine: what is ours, or a partner's own leg, says nothing of it."""
        error = self.error
        return error is not None and not is_ours(error) and error.iid == iid


async def _kv_transfer(legs: ProbeLegs, iid: str, *, peers: Callable[[str], TransferPeers]) -> Result:
    """One good transfer in a direction proves it: what fails beside it is the edge's matter, not the
    engine's (section 9)."""
    now = peers(iid)
    produced, broke = await _produced(legs, [(iid, peer) for peer in now.produces_to])
    if broke:
        return FAILED, f"{produced[-1]}; {produced[-1].consumer} has been ill since"
    consumed = await _transfers(legs.transfer, [(peer, iid) for peer in now.consumes_from])
    if not produced and not consumed:
        return SKIPPED, "no live peer"
    for direction in (produced, consumed):
        if direction and all(one.error is not None for one in direction):
            told = [one for one in direction if one.tells_of(iid)]
            return FAILED if told else OPEN, "; ".join(map(str, told or direction))
    broken = [one for one in (*produced, *consumed) if one.error is not None]
    return PASSED, "; ".join(str(one) for one in broken)


async def _produced(legs: ProbeLegs, pairs: Sequence[tuple[str, str]]) -> tuple[list[Transfer], bool]:
    """Bad KV kills who pulls it: one peer after the other until a transfer went well, then all others.
    Ends with one that broke its consumer, and tells that."""
    made: list[Transfer] = []
    while len(made) < len(pairs):
        pair = pairs[len(made)]
        ill = await _error_of(legs.health(pair[1]))
        made.append(Transfer(*pair, ill) if ill else await transferred(legs.produce(*pair), pair))
        if made[-1].error is None:
            return made + await _transfers(legs.produce, pairs[len(made) :]), False
        if ill is None and await _has_broken_its_consumer(legs, made[-1]):
            return made, True
    return made, False


async def _has_broken_its_consumer(legs: ProbeLegs, made: Transfer) -> bool:
    """The consumer failed by itself, and is not well after a while either."""
    if not made.tells_of(made.consumer):
        return False
    await asyncio.sleep(ILL_S)
    ill = await _error_of(legs.health(made.consumer))
    return ill is not None and not is_ours(ill)


async def _transfers(legs: Legs, pairs: Sequence[tuple[str, str]]) -> list[Transfer]:
    return list(await asyncio.gather(*(transferred(legs(*pair), pair) for pair in pairs)))


async def transferred(legs: Awaitable[None], pair: tuple[str, str]) -> Transfer:
    """Both legs of a pair of producer and consumer, and how they went."""
    return Transfer(*pair, await _error_of(legs))


async def _error_of(asked: Awaitable[None]) -> EngineError | None:
    """What an engine made of it; None: all well."""
    try:
        await asked
    except EngineError as error:
        return error
    return None
