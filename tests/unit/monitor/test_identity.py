"""monitor/identity.py: what engine and sidecar tell together, as evidence; over memory twins."""

from __future__ import annotations

import asyncio
import json

import pytest

from narwhal.cluster.local import LocalGate
from narwhal.engine.attestation import EngineIdentities
from narwhal.engine.memory_control import Answering, ControlAsk, MemoryControl
from narwhal.model.attestation import Attestation
from narwhal.model.effect import ProbeKind, ProbeWanted
from narwhal.model.engine import EngineSpec
from narwhal.model.evidence import Identified, IdentityOutcome, Validated
from narwhal.model.identity import EngineIdentity
from narwhal.monitor.identity import CheckedProcesses, IdentityLooks, Questions
from narwhal.monitor.prober import Prober
from narwhal.monitor.validation import Validation, attested
from narwhal.ports import ControlGate, EngineReply
from tests.support.evidence import Heard
from tests.support.looking import legs_of
from tests.support.scripted import until

LIVE = EngineIdentity("0.32.0", 1795979050.83)
CONTRACT = {"vllm_version": "0.32.0", "kv_heads": 8}
LIKE, UNLIKE = IdentityOutcome.LIKE, IdentityOutcome.UNLIKE
SILENT, INCONCLUSIVE = IdentityOutcome.SILENT, IdentityOutcome.INCONCLUSIVE
BUDGET_S = 0.05
LOCAL = LocalGate()


def engine(live: EngineIdentity = LIVE) -> Answering:
    async def answer(ask: ControlAsk) -> EngineReply:
        if ask.path == "/version":
            return EngineReply(200, {}, json.dumps({"version": live.vllm_version}).encode())
        return EngineReply(200, {}, f"process_start_time_seconds {live.process_start!r}\n".encode())

    return answer


def sidecar(**contract: object) -> Answering:
    async def answer(ask: ControlAsk) -> EngineReply:
        attested = {**CONTRACT, **contract}
        says = Attestation(attested, dict.fromkeys(attested, "the test"), LIVE)
        return EngineReply(200, {}, json.dumps(says.document()).encode())

    return answer


def answers(status: int, body: bytes = b"{}") -> Answering:
    async def answer(ask: ControlAsk) -> EngineReply:
        return EngineReply(status, {}, body)

    return answer


async def hangs(ask: ControlAsk) -> EngineReply:
    await asyncio.Event().wait()
    raise AssertionError("it never goes on")


class Superseded(LocalGate):
    """Any engine may know a higher epoch."""

    def overruled(self, iid: str, epoch: int) -> bool:
        return True


def look(
    beside: Answering | None,
    live: Answering | None,
    *,
    streaming: bool = False,
    gate: ControlGate = LOCAL,
) -> Identified:
    """What one look showed of an engine and its sidecar; None: nobody listens there."""

    async def main() -> Identified:
        spec = EngineSpec("e0", "http://e0", attestation_url="http://e0:8010/v1/attestation")
        engines, sidecars = (
            MemoryControl({"e0": one} if one else {}, connections=1) for one in (live, beside)
        )
        legs = legs_of(engines, gate, budget_s=BUDGET_S)
        identities = EngineIdentities([spec], engines, sidecars=sidecars)
        looks = IdentityLooks(Questions(identities, legs, timeout_s=BUDGET_S), contract=CONTRACT)
        heard = Heard()
        prober = Prober(legs, Validation(()), sink=heard, streaming=lambda iid: streaming, looks=looks)
        for _ in range(3):
            prober.wanted(ProbeWanted(ProbeKind.IDENTITY, "e0", number=7))
        await until(lambda: not prober.busy, "the look has ended")
        prober.take_in()
        (seen,) = heard.of(Identified)
        assert (seen.iid, seen.number) == ("e0", 7)
        return seen

    return asyncio.run(main())


def test_an_attested_process_that_is_as_the_contract_wants_is_like() -> None:
    assert look(sidecar(), engine()) == Identified("e0", LIKE, LIVE.process_start, number=7)


def test_what_is_unlike_is_named_with_the_process_that_is() -> None:
    seen = look(sidecar(kv_heads=4), engine())
    assert (seen.outcome, seen.process_start) == (UNLIKE, LIVE.process_start)
    assert seen.detail == "kv_heads is 4, the contract wants 8"
    other = look(sidecar(), engine(EngineIdentity("0.33.0", LIVE.process_start + 9)))
    assert (other.outcome, other.process_start) == (UNLIKE, LIVE.process_start + 9)
    assert "the engine runs vLLM 0.33.0, the contract wants 0.32.0" in other.detail


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        (None, "the sidecar gives no answer (connect: nobody listens)"),
        (hangs, "the sidecar gives no answer (no whole answer in 0.05 s)"),
        (
            answers(503, b'{"error": {"message": "restart this sidecar"}}'),
            "answers 503: restart this sidecar",
        ),
        (answers(200, b"{}"), "schema must be 'narwhal.attestation'"),
    ],
)
def test_a_silent_sidecar_leaves_the_word_to_the_engine(beside: Answering | None, said: str) -> None:
    seen = look(beside, engine())
    assert (seen.outcome, seen.process_start) == (SILENT, LIVE.process_start)
    assert said in seen.detail


@pytest.mark.parametrize("live", [None, hangs, answers(500), answers(200, b"no version")])
def test_an_engine_that_does_not_tell_its_process_is_silent_unless_it_is_busy(live: Answering | None) -> None:
    seen = look(sidecar(), live)
    assert (seen.outcome, seen.process_start) == (SILENT, None)
    assert look(sidecar(), live, streaming=True).outcome is INCONCLUSIVE
    assert look(None, live).outcome is SILENT


async def stale(ask: ControlAsk) -> EngineReply:
    body = {
        "error": {"message": "old", "type": "stale_epoch", "param": None, "code": "stale_epoch", "epoch": 9}
    }
    return EngineReply(409, {}, json.dumps(body).encode())


def test_an_engine_that_knows_a_higher_epoch_says_nothing_of_its_identity() -> None:
    assert look(sidecar(), stale, gate=Superseded()).outcome is INCONCLUSIVE


def test_an_engine_that_refuses_by_an_epoch_that_nobody_can_have_is_silent() -> None:
    assert look(sidecar(), stale).outcome is SILENT


def test_a_readmission_tells_which_process_it_looked_at() -> None:
    """Not told, the next owner would find another process than the accepted one, and hold the fleet."""

    async def main() -> None:
        spec = EngineSpec("e0", "http://e0", attestation_url="http://e0:8010/v1/attestation")
        control, sidecars = (MemoryControl({"e0": one}, connections=1) for one in (engine(), sidecar()))
        legs = legs_of(control, LOCAL, budget_s=BUDGET_S)
        ask = Questions(EngineIdentities([spec], control, sidecars=sidecars), legs, timeout_s=BUDGET_S)
        looks, heard = IdentityLooks(ask, contract=CONTRACT), Heard()
        processes = CheckedProcesses(ask)
        steps = Validation((attested(looks, processes),), start=processes.start)
        prober = Prober(legs, steps, sink=heard, streaming=lambda iid: False, looks=looks)
        prober.wanted(ProbeWanted(ProbeKind.READMISSION, "e0"))
        await until(lambda: not prober.busy, "it has ended")
        prober.take_in()
        (told,) = heard.of(Validated)
        assert [check.outcome for check in told.checks] == ["passed"]
        assert told.process_start == LIVE.process_start

    asyncio.run(main())
