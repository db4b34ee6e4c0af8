"""monitor/probe_legs.py: what a probe sends, and whom its errors blame."""

from __future__ import annotations

import asyncio
import json

import pytest

from narwhal.engine.dialect import make_dialect
from narwhal.errors import (
    EngineError,
    EngineRefused,
    EngineTaken,
    EngineTimeout,
    EngineUnreachable,
    HandoffInvalid,
    PoolExhausted,
    ProbeLate,
    StaleEpoch,
)
from narwhal.model.evidence import ProbeOutcome
from narwhal.monitor.probe_legs import PROMPT_TOKENS, Probed, Shown, judged, outcome_for, own_request
from narwhal.monitor.validation import listed_models
from tests.support.settings import engine_settings

VLLM = make_dialect("vllm", "nixl")


def blamed(error: EngineError, iid: str = "d0") -> ProbeOutcome:
    error.iid = iid
    return outcome_for("d0", error)


def test_a_leg_may_take_the_larger_of_first_token_and_health_time() -> None:
    assert Probed.by(engine_settings(), model="m") == Probed("m", health_s=5.0, leg_s=5.0)
    slow = engine_settings(first_token_timeout_s=8.0, health_timeout_s=3.0)
    assert Probed.by(slow, model="m") == Probed("m", health_s=3.0, leg_s=8.0)


def test_no_two_probes_have_the_same_prompt() -> None:
    first, second = (own_request("tiny", tokens=4).fields["prompt"] for _ in range(2))
    assert first != second
    assert len(first) == len(second) == PROMPT_TOKENS
    assert all(0 < token < 256 for token in first + second)


def test_both_legs_are_those_that_clients_requests_have() -> None:
    request = own_request("tiny", tokens=4)
    prefill, decode = json.loads(VLLM.prefill_body(request)), json.loads(VLLM.decode_body(request, None))
    assert prefill["prompt"] == decode["prompt"] == request.fields["prompt"]
    assert (prefill["max_tokens"], prefill["kv_transfer_params"]["do_remote_decode"]) == (1, True)
    assert (decode["max_tokens"], decode["stream"], decode["model"]) == (4, True, "tiny")


def test_the_suspects_own_leg_is_its_own_fault() -> None:
    assert blamed(EngineTimeout("late")) is ProbeOutcome.BAD
    assert blamed(HandoffInvalid("none")) is ProbeOutcome.BAD


def test_the_other_engines_leg_says_nothing() -> None:
    assert blamed(EngineTimeout("late"), "p0") is ProbeOutcome.INCONCLUSIVE


def test_our_own_pool_and_our_own_epoch_say_nothing() -> None:
    assert blamed(PoolExhausted("full")) is ProbeOutcome.INCONCLUSIVE
    assert blamed(ProbeLate("late")) is ProbeOutcome.INCONCLUSIVE
    assert blamed(EngineTaken("drained")) is ProbeOutcome.INCONCLUSIVE
    assert blamed(StaleEpoch("old", epoch=9, error={})) is ProbeOutcome.INCONCLUSIVE


async def fails(error: EngineError) -> None:
    error.iid = "d0"
    raise error


@pytest.mark.parametrize(
    ("error", "reached"),
    [
        (EngineUnreachable("refused", kind="connect"), False),
        (EngineTimeout("no SYN-ACK", kind="connect"), False),
        (EngineUnreachable("reset", kind="lost"), True),
        (EngineTimeout("silent", kind="read"), True),
    ],
)
def test_what_took_no_connection_is_told_apart(error: EngineError, reached: bool) -> None:
    shown = asyncio.run(judged(fails(error), "d0"))
    assert shown == Shown(ProbeOutcome.BAD, str(error), reached=reached)


def test_of_a_refusal_the_status_is_told_to_who_gave_it() -> None:
    for suspect, shown in (
        ("d0", Shown(ProbeOutcome.BAD, "busy", 429)),
        ("p0", Shown(ProbeOutcome.INCONCLUSIVE, "busy")),
    ):
        assert asyncio.run(judged(fails(EngineRefused("busy", status=429)), suspect)) == shown


def test_a_model_list_is_read_and_anything_else_lists_nothing() -> None:
    assert listed_models(b'{"data": [{"id": "a"}, {"id": "b"}]}') == ("a", "b")
    for body in (b"", b"[]", b"{}", b'{"data": 3}', b'{"data": [3]}', b"{"):
        assert listed_models(body) == ()
