"""serving/witness.py: what is said of engines, and what never is."""

from __future__ import annotations

import hashlib

import pytest

from narwhal.errors import (
    EngineError,
    EngineRefused,
    EngineTimeout,
    EngineUnreachable,
    HandoffInvalid,
    PoolExhausted,
    StaleEpoch,
    StreamBroken,
    SuspectedPoison,
)
from narwhal.model.engine import Leg
from narwhal.model.evidence import CountFailed, FailureClass, LegAnswered, LegFailed, LegSucceeded
from narwhal.model.request import SHORT_BODY, Api, InferenceRequest
from narwhal.serving.witness import Witness
from tests.support.evidence import Heard


def request(body: bytes = b'{"prompt": "x"}') -> InferenceRequest:
    return InferenceRequest(
        api=Api.COMPLETIONS,
        rid="r",
        client_rid=None,
        fields={"prompt": "x"},
        body=body,
        stream=True,
        include_usage=False,
        return_token_ids=False,
        arrived_at=0.0,
        arrived_wall=0.0,
    )


DIGEST = hashlib.blake2b(request().body, digest_size=16).digest()


class Rig:
    def __init__(self) -> None:
        self.sink = Heard()
        self.witness = Witness(self.sink)

    def failed(self, error: EngineError, *, leg: Leg = Leg.DECODE, peer: str = "") -> list[object]:
        error.iid = "e1"
        self.witness.failed(error, leg, request=request(), peer=peer)
        return list(self.sink.evidence)


def test_a_leg_that_ended_well_is_said_with_its_peer() -> None:
    rig = Rig()
    rig.witness.succeeded("e0", Leg.PREFILL, remote_engine_id="uuid-1")
    rig.witness.succeeded("e1", Leg.DECODE, peer="e0")
    assert rig.sink.evidence == [
        LegSucceeded("e0", Leg.PREFILL, "", "uuid-1"),
        LegSucceeded("e1", Leg.DECODE, "e0", ""),
    ]


@pytest.mark.parametrize(
    ("error", "failure", "way"),
    [
        (EngineUnreachable("x"), FailureClass.CONNECTION, "connection:lost"),
        (EngineTimeout("x", kind="read", limit_s=5.0), FailureClass.TIMEOUT, "timeout:read"),
        (EngineTimeout("x", kind="first_token", limit_s=2.5), FailureClass.STREAM, "stream:first_token"),
        (EngineTimeout("x", kind="silence", limit_s=60.0), FailureClass.STREAM, "stream:silence"),
        (StreamBroken("x", kind="early_end"), FailureClass.STREAM, "stream:early_end"),
        (StreamBroken("x", kind="bad_finish"), FailureClass.STREAM, "stream:bad_finish"),
        (
            StreamBroken("x", kind="error_object"),
            FailureClass.INFERENCE_STATUS,
            "inference_status:error_object",
        ),
        (EngineRefused("x", status=500), FailureClass.INFERENCE_STATUS, "inference_status:500"),
        (HandoffInvalid("x"), FailureClass.KV_HANDOFF, "kv_handoff"),
    ],
)
def test_a_failed_leg_is_said_once_with_class_way_request_and_peer(
    error: EngineError, failure: FailureClass, way: str
) -> None:
    said = Rig().failed(error, peer="e0")
    assert said == [LegFailed("e1", Leg.DECODE, failure, way, "x", peer="e0", request=DIGEST)]


@pytest.mark.parametrize(
    "error",
    [
        EngineUnreachable("x", kind="connect"),
        EngineTimeout("x", kind="connect", limit_s=10.0),
        EngineRefused("x", status=429),
        EngineRefused("x", status=408),
    ],
)
def test_what_never_got_the_request_or_had_no_room_is_not_blamed_on_the_request(error: EngineError) -> None:
    (said,) = Rig().failed(error)
    assert isinstance(said, LegFailed)
    assert said.request == b""


def test_back_pressure_is_said_with_its_wait() -> None:
    (said,) = Rig().failed(EngineRefused("x", status=429, retry_after_s=7.0))
    assert isinstance(said, LegFailed)
    assert (said.failure, said.retry_after_s) == (FailureClass.OVERLOAD, 7.0)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 302])
def test_any_other_status_is_an_answer(status: int) -> None:
    assert Rig().failed(EngineRefused("x", status=status)) == [LegAnswered("e1", Leg.DECODE, status, DIGEST)]


@pytest.mark.parametrize(
    "error",
    [PoolExhausted("x"), StaleEpoch("x", epoch=9, error={}), StreamBroken("x", kind="too_large")],
)
def test_what_is_ours_is_never_said(error: EngineError) -> None:
    assert Rig().failed(error, leg=Leg.PREFILL) == []


def test_a_decode_that_is_refused_as_stale_is_an_answer_for_no_fence_refuses_decodes() -> None:
    (told,) = Rig().failed(StaleEpoch("x", epoch=9, error={}), leg=Leg.DECODE)
    assert isinstance(told, LegAnswered) and told.status == 409


# --- suspected poison ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "way", "status"),
    [
        (EngineRefused("x", status=500), "inference_status:500", 500),
        (EngineRefused("x", status=599), "inference_status:599", 599),
        (EngineRefused("x", status=777), "inference_status:777", 502),
        (StreamBroken("x", kind="early_end"), "stream:early_end", 502),
        (EngineTimeout("x", kind="first_token", limit_s=2.5), "stream:first_token", 502),
    ],
)
def test_a_suspected_request_has_the_engines_status_or_502(error: EngineError, way: str, status: int) -> None:
    rig = Rig()
    rig.sink.suspects = {way}
    with pytest.raises(SuspectedPoison) as raised:
        rig.failed(error)
    assert (raised.value.status, raised.value.iid, raised.value.leg) == (status, "e1", "decode")
    assert raised.value.__cause__ is error
    assert len(rig.sink.evidence) == 1


def test_a_closed_door_is_no_poison_whatever_the_judge_thinks() -> None:
    rig = Rig()
    rig.sink.suspects = {"connection:connect"}
    assert rig.failed(EngineUnreachable("x", kind="connect"))


# --- token counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "failure", "digest"),
    [
        (EngineUnreachable("x", iid="e0", kind="connect"), FailureClass.CONNECTION, b""),
        (EngineTimeout("x", iid="e0", kind="connect", limit_s=2.0), FailureClass.TIMEOUT, b""),
        (EngineTimeout("x", iid="e0", kind="read", limit_s=2.0), FailureClass.TIMEOUT, DIGEST),
    ],
)
def test_no_connection_and_no_answer_in_time_are_said_of_a_count(
    error: EngineError, failure: FailureClass, digest: bytes
) -> None:
    rig = Rig()
    told = rig.witness.not_counted(error, request())
    assert told == CountFailed("e0", failure, "token count: x", digest)
    assert rig.sink.evidence == [told]


@pytest.mark.parametrize(
    "error",
    [
        *(EngineRefused("x", iid="e0", status=s) for s in (204, 302, 400, 401, 404, 408, 409, 429, 500, 503)),
        StaleEpoch("x", iid="e0", epoch=9, error={}),
        *(
            StreamBroken("x", iid="e0", kind=k)
            for k in ("malformed", "early_end", "error_object", "too_large")
        ),
        EngineUnreachable("connection lost", iid="e0", kind="lost"),
        PoolExhausted("x", iid="e0"),
    ],
    ids=lambda error: f"{type(error).__name__} {getattr(error, 'status', getattr(error, 'kind', ''))}",
)
def test_whatever_else_becomes_of_a_count_says_nothing(error: EngineError) -> None:
    rig = Rig()
    assert rig.witness.not_counted(error, request()) is None
    assert rig.sink.evidence == []


@pytest.mark.parametrize(
    ("iid", "failure", "again"),
    [
        ("e1", FailureClass.CONNECTION, True),
        ("e0", FailureClass.CONNECTION, False),
        ("e1", FailureClass.TIMEOUT, False),
    ],
)
def test_a_leg_says_whether_its_request_has_told_that_of_its_engine(
    iid: str, failure: FailureClass, again: bool
) -> None:
    rig = Rig()
    error = EngineUnreachable("x", iid="e1", kind="connect")
    rig.witness.failed(error, Leg.PREFILL, request=request(), count=CountFailed(iid, failure, "x"))
    (said,) = rig.sink.evidence
    assert isinstance(said, LegFailed)
    assert said.again is again


# --- digests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [SHORT_BODY, SHORT_BODY + 1])
def test_a_request_has_the_same_digest_after_it_shed_its_content(size: int) -> None:
    asked = request(b"x" * size)
    before = asked.digest()
    asked.shed()
    assert asked.digest() == before
    assert len(before) == 16
    assert not asked.fields
    assert len(asked.body) <= SHORT_BODY
    assert request(b"y" * size).digest() != before
