"""monitor/validation.py: the runner of named checks, and the attestation step over memory twins."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from narwhal.cluster.local import LocalGate
from narwhal.engine.attestation import EngineIdentities
from narwhal.engine.memory_control import Answering, ControlAsk, MemoryControl
from narwhal.errors import EngineError, EngineRefused, EngineTimeout, PoolExhausted, StaleEpoch
from narwhal.model.attestation import Attestation
from narwhal.model.engine import EngineSpec
from narwhal.model.evidence import Check, Validated
from narwhal.model.identity import EngineIdentity
from narwhal.model.plain_text import shown
from narwhal.monitor.identity import CheckedProcesses, IdentityLooks, Questions
from narwhal.monitor.validation import OPEN, Result, Step, Validation, attested, skipped
from narwhal.ports import EngineReply
from tests.support.looking import legs_of

LIVE = EngineIdentity("0.32.0", 1795979050.83)
CONTRACT = {"vllm_version": "0.32.0", "kv_heads": 8}
SAYS_SO = Attestation(CONTRACT, dict.fromkeys(CONTRACT, "the test"), LIVE)
GOOD = Step("good", lambda iid: done(("passed", "")))


async def done(result: Result) -> Result:
    return result


def ends(result: Result, name: str = "check") -> Step:
    return Step(name, lambda iid: done(result))


def raises(error: EngineError) -> Step:
    async def run(iid: str) -> Result:
        raise error

    return Step("check", run)


def validated(*steps: Step) -> Validated:
    return asyncio.run(Validation(steps).run("e0"))


def test_checks_are_kept_in_order_with_name_outcome_and_detail() -> None:
    assert validated(GOOD, skipped("process", "not owed"), ends(("passed", "e0 -> e1: lost"), "kv")) == (
        Validated(
            "e0",
            (
                Check("good", "passed", ""),
                Check("process", "skipped", "not owed"),
                Check("kv", "passed", "e0 -> e1: lost"),
            ),
        )
    )


def test_the_first_failed_check_is_the_last() -> None:
    told = validated(GOOD, ends(("failed", "why")), GOOD)
    assert [check.outcome for check in told.checks] == ["passed", "failed"]
    assert told.conclusive


@pytest.mark.parametrize("error", [EngineTimeout("late"), EngineRefused("status 500", status=500)])
def test_what_the_engine_does_is_a_failed_check_in_its_own_words(error: EngineError) -> None:
    assert validated(raises(error)).checks == (Check("check", "failed", str(error)),)


@pytest.mark.parametrize("error", [PoolExhausted("full"), StaleEpoch("old", epoch=9, error={})])
def test_what_is_our_own_doing_leaves_it_open(error: EngineError) -> None:
    told = validated(GOOD, raises(error), GOOD)
    assert (told.conclusive, [check.name for check in told.checks]) == (False, ["good"])
    assert told.why == f"the check check could not be made ({error})"


def test_a_check_that_could_not_be_made_leaves_it_open_and_is_named() -> None:
    detail = "e0 -> e1: e1 is\nbusy"
    told = validated(GOOD, ends((OPEN, detail), "kv_transfer"), GOOD)
    assert (told.conclusive, told.checks) == (False, (Check("good", "passed", ""),))
    assert told.why == f"the check kv_transfer could not be made ({shown(detail)})"


# --- attestation -------------------------------------------------------------------------------------


def engine(start: float = LIVE.process_start) -> Answering:
    async def answer(ask: ControlAsk) -> EngineReply:
        if ask.path == "/version":
            return EngineReply(200, {}, b'{"version":"0.32.0"}')
        return EngineReply(200, {}, f"process_start_time_seconds {start!r}\n".encode())

    return answer


def sidecar(status: int = 200, says: Attestation = SAYS_SO) -> Answering:
    async def answer(ask: ControlAsk) -> EngineReply:
        return EngineReply(status, {}, json.dumps(says.document()).encode())

    return answer


def attestation(beside: Answering, live: Answering, **contract: Any) -> Check:
    async def main() -> Validated:
        spec = EngineSpec("e0", "http://e0", attestation_url="http://e0:8010/v1/attestation")
        control = MemoryControl({"e0": live}, connections=1)
        identities = EngineIdentities([spec], control, sidecars=MemoryControl({"e0": beside}, connections=1))
        legs = legs_of(control, LocalGate(), budget_s=5.0)
        ask = Questions(identities, legs, timeout_s=5.0)
        step = attested(IdentityLooks(ask, contract={**CONTRACT, **contract}), CheckedProcesses(ask))
        return await Validation((step,)).run("e0")

    told = asyncio.run(main())
    assert told.conclusive
    (check,) = told.checks
    assert check.name == "attestation"
    return check


def test_a_live_process_that_is_attested_as_the_contract_wants_it_passes() -> None:
    assert attestation(sidecar(), engine()) == Check("attestation", "passed", "")


@pytest.mark.parametrize(
    ("check", "why"),
    [
        (lambda: attestation(sidecar(), engine(), kv_heads=4), "kv_heads is 8, the contract wants 4"),
        (lambda: attestation(sidecar(), engine(LIVE.process_start + 1)), "process started at"),
        (lambda: attestation(sidecar(503), engine()), "the sidecar answers 503"),
    ],
)
def test_anything_else_fails_and_says_why(check: Callable[[], Check], why: str) -> None:
    failed = check()
    assert failed.outcome == "failed"
    assert why in failed.detail


BAD_TEXTS = ("\ud800", "\x1b[31m", "0.32.0\n2026-01-01 forged", "\0", "\x9b", "\u202e", "x" * 200_000)


def attested_fields(odd: str) -> Check:
    return attestation(sidecar(says=replace(SAYS_SO, contract={**CONTRACT, "kv_heads": odd})), engine())


def attested_version(odd: str) -> Check:
    return attestation(sidecar(says=replace(SAYS_SO, identity=replace(LIVE, vllm_version=odd))), engine())


def told_version(odd: str) -> Check:
    return attestation(sidecar(), answers({"version": odd}))


def sidecar_error(odd: str) -> Check:
    return attestation(answers({"error": {"message": odd}}, status=503), engine())


def attested_schema(odd: str) -> Check:
    return attestation(answers({**SAYS_SO.document(), "schema": odd}), engine())


def a_checks_own_words(odd: str) -> Check:
    (check,) = validated(ends(("failed", f"lists {odd}"))).checks
    return check


def answers(document: dict[str, Any], status: int = 200) -> Answering:
    async def answer(ask: ControlAsk) -> EngineReply:
        return EngineReply(status, {}, json.dumps(document).encode())

    return answer


SOURCES = (
    attested_fields, attested_version, told_version, sidecar_error, attested_schema, a_checks_own_words,
)  # fmt: skip


@pytest.mark.parametrize("odd", BAD_TEXTS, ids=lambda odd: ascii(odd)[:12])
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_a_bad_text_fails_its_check_and_is_told_short_and_printable(
    source: Callable[[str], Check], odd: str
) -> None:
    check = source(odd)
    assert check.outcome == "failed"
    assert check.detail.isprintable() and 0 < len(check.detail) <= 4096
