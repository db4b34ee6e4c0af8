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
from narwhal.model.effect import ProbeKind, ProbeWanted
from narwhal.model.evidence import EdgeProbed, Evidence, InferenceProbed, ProbeOutcome
from narwhal.monitor.probe_legs import (
    PROMPT_TOKENS,
    Probed,
    ProbeLegs,
    Shown,
    judged,
    outcome_for,
    own_request,
)
from narwhal.monitor.prober import Prober
from narwhal.monitor.validation import Validation, listed_models, transferred
from tests.support.evidence import Heard
from tests.support.scripted import until
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


# --- pairs: the decode of d0 fails, which may be for the KV of p0 ---


class Pulls(ProbeLegs):
    """Decodes of d0 that pull end with `pulled`, those of its own with `alone`; None: well."""

    def __init__(self, pulled: EngineError, alone: EngineError | None = None) -> None:
        self._pulled, self._alone = pulled, alone

    async def transfer(self, producer: str, consumer: str) -> None:
        await fails(self._pulled)

    async def complete(self, iid: str) -> None:
        if self._alone is not None:
            await fails(self._alone)


NO_CONNECTION = (
    EngineUnreachable("connect: refused", kind="connect"),
    EngineTimeout("no SYN-ACK", kind="connect"),
)
FAILED_PULLS = (
    EngineUnreachable("reset", kind="lost"),
    EngineTimeout("silent", kind="read"),
    EngineRefused("status 500", status=500),
)
no_connections = pytest.mark.parametrize("error", NO_CONNECTION, ids=str)
failed_pulls = pytest.mark.parametrize("error", FAILED_PULLS, ids=str)


def edge_probed(legs: Pulls) -> list[Evidence]:
    """All that an edge probe from p0 to d0 told."""

    async def look() -> list[Evidence]:
        prober = Prober(legs, Validation(()), sink=(heard := Heard()), streaming=lambda iid: False)
        prober.wanted(ProbeWanted(ProbeKind.EDGE, "d0", "p0"))
        await until(lambda: not prober.busy, "the edge is probed")
        return heard.evidence

    return asyncio.run(look())


@no_connections
def test_a_consumer_that_took_no_connection_pulled_nothing_and_tells_nothing_of_its_producer(
    error: EngineError,
) -> None:
    shown = asyncio.run(judged(Pulls(error).produce("p0", "d0"), "p0"))
    assert shown == Shown(ProbeOutcome.INCONCLUSIVE, str(error))
    made = asyncio.run(transferred(Pulls(error).produce("p0", "d0"), ("p0", "d0")))
    assert (made.tells_of("p0"), made.tells_of("d0")) == (False, True)


@no_connections
def test_nor_of_the_edge_and_it_is_told_of_itself_if_it_is_still_down(error: EngineError) -> None:
    nothing = EdgeProbed("p0", "d0", ProbeOutcome.INCONCLUSIVE, str(error))
    assert edge_probed(Pulls(error)) == [nothing]
    own = InferenceProbed("d0", ProbeOutcome.BAD, detail=str(error), reached=False)
    assert edge_probed(Pulls(error, error)) == [own, nothing]


@failed_pulls
def test_a_pull_that_failed_is_the_producers_and_the_consumers_status_is_not(error: EngineError) -> None:
    shown = asyncio.run(judged(Pulls(error).produce("p0", "d0"), "p0"))
    assert shown == Shown(ProbeOutcome.BAD, f"d0 could not pull its KV: {error}", pull=True)
    assert edge_probed(Pulls(error)) == [EdgeProbed("p0", "d0", ProbeOutcome.BAD, str(error))]


@failed_pulls
def test_it_is_not_where_the_consumer_fails_alone(error: EngineError) -> None:
    ill = EngineRefused("ill", status=503)
    assert asyncio.run(judged(Pulls(error, ill).produce("p0", "d0"), "p0")).outcome is (
        ProbeOutcome.INCONCLUSIVE
    )
    assert [one.outcome for one in edge_probed(Pulls(error, ill))] == [
        ProbeOutcome.BAD,
        ProbeOutcome.INCONCLUSIVE,
    ]


def test_a_model_list_is_read_and_anything_else_lists_nothing() -> None:
    assert listed_models(b'{"data": [{"id": "a"}, {"id": "b"}]}') == ("a", "b")
    for body in (b"", b"[]", b"{}", b'{"data": 3}', b'{"data": [3]}', b"{"):
        assert listed_models(body) == ()
