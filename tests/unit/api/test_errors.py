"""The one map from exception to response, row by row."""

from __future__ import annotations

import json

import pytest

from narwhal import errors
from narwhal.api.errors import answer, without_addresses
from narwhal.errors import EngineError, EngineRefused

RID = "0123456789abcdef"

ROWS = [
    (errors.BadRequest("why", param="n"), 400, "invalid_request_error", None, None),
    (errors.UnknownModel("why", param="model"), 404, "invalid_request_error", "model_not_found", None),
    (errors.TooLarge("why"), 413, "request_too_large", None, None),
    (errors.RequestIncomplete("why"), 408, "invalid_request_error", "request_timeout", None),
    (errors.Overloaded("why"), 429, "server_overloaded_error", None, "1"),
    (errors.Refused("why", retry_after_s=2.1), 429, "server_overloaded_error", None, "3"),
    (errors.Refused("why", retry_after_s=None), 429, "server_overloaded_error", None, None),
    (errors.NotOwner("why"), 503, "standby", "standby", "1"),
    (errors.NoEngine("why"), 503, "backend_unavailable", "backend_unavailable", "1"),
    (errors.NoSchedulableEngine("why"), 503, "no_schedulable_engines", "no_schedulable_engines", "1"),
    (errors.QueueExpired("why"), 504, "queue_expired", None, None),
    (errors.RequestExpired("why"), 504, "request_expired", None, None),
    (errors.HandoffExpired("why"), 504, "handoff_expired", "handoff_expired", None),
]


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "retry_after"), ROWS, ids=lambda value: str(value)
)
def test_every_row_of_the_table(error, status, kind, code, retry_after):
    told = answer(error, RID)
    assert told.status == status
    assert json.loads(told.body()) == {
        "error": {"message": "why", "type": kind, "param": getattr(error, "param", None), "code": code}
    }
    headers = dict(told.headers(RID))
    assert headers.get("retry-after") == retry_after
    assert headers["x-request-id"] == RID
    assert headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.EngineUnreachable("connect to 10.0.0.1:8000 refused", iid="e0"), 502),
        (errors.StreamBroken("no [DONE]", iid="e0"), 502),
        (errors.HandoffInvalid("no descriptor", iid="e0"), 502),
        (errors.EngineTimeout("first token", iid="e0", kind="first_token"), 504),
        (errors.PoolExhausted("no seat"), 504),
        *((EngineRefused("status", iid="e0", status=code), 502) for code in (401, 403, 404, 409, 500, 503)),
        (EngineRefused("status", iid="e0", status=408), 504),
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'status', '')}",
)
@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_a_fault_of_a_leg_names_the_leg_and_nothing_else(error, status, leg):
    error.leg = leg
    told = answer(error, RID)
    assert told.status == status
    assert (told.error["type"], told.error["code"], told.error["param"]) == (leg, leg, None)
    assert "e0" not in told.error["message"]
    assert str(error) not in told.error["message"]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_an_engines_refusal_of_the_request_is_passed_on_without_addresses(status):
    sent = {
        "message": "prompt too long at http://10.1.2.3:8000/v1 (worker gpu-7.cluster.local:8100)",
        "type": "BadRequestError",
        "param": "prompt",
        "code": status,
        "detail": {"seen_by": ["[fe80::1]:9000", 7]},
    }
    told = answer(EngineRefused("status", status=status, error=sent), RID)
    assert told.status == status
    assert told.error == {
        **sent,
        "message": "prompt too long at (address) (worker (address))",
        "detail": {"seen_by": ["(address)", 7]},
    }


def test_a_refusal_without_an_error_object_still_has_all_four_keys():
    told = answer(EngineRefused("status", status=400), RID)
    assert set(told.error) == {"message", "type", "param", "code"}
    assert told.error["message"]


@pytest.mark.parametrize(("wait_s", "header"), [(None, "1"), (7.0, "7"), (0.0, "1")])
def test_an_overloaded_engine_is_told_as_overload_with_its_own_wait(wait_s, header):
    told = answer(EngineRefused("status", status=429, retry_after_s=wait_s), RID)
    assert (told.status, told.error["type"]) == (429, "server_overloaded_error")
    assert dict(told.headers(RID))["retry-after"] == header


@pytest.mark.parametrize(
    "error", [KeyError("secret"), RuntimeError("http://engine:1"), errors.StoreError("x")]
)
def test_the_unexpected_is_told_by_request_id_alone(error):
    told = answer(error, RID)
    assert told.status == 500
    assert told.error["type"] == "internal_error"
    assert RID in told.error["message"]
    assert "secret" not in told.error["message"]


def test_a_started_stream_ends_with_one_error_event():
    event = answer(EngineError("x"), RID).event()
    assert event.startswith(b"data: {")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    assert set(json.loads(event[6:])["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("error", [errors.TooLarge("x"), errors.RequestIncomplete("x")])
def test_a_connection_with_the_rest_of_a_request_on_it_is_closed(error):
    assert ("connection", "close") in answer(error, RID).headers(RID)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("at http://engine-0:8000/v1/completions?x=1, twice", "at (address) twice"),
        ("tcp://10.0.0.1:5557 and redis+sentinel://a:1,b:2/m", "(address) and (address)"),
        ("10.0.0.1 10.0.0.1:80", "(address) (address)"),
        ("engine-0:8000 localhost:18751", "(address) (address)"),
        ("[::1]:8000 [2001:db8::1]", "(address) (address)"),
        ("max_tokens must be at least 1, got 0", "max_tokens must be at least 1, got 0"),
        ("context length is 512 tokens: 600 given", "context length is 512 tokens: 600 given"),
        ("vllm 0.32.0", "vllm 0.32.0"),
        ("ratio 1:2 at 12.5", "ratio 1:2 at 12.5"),
    ],
)
def test_addresses_are_found_and_plain_words_left(text, clean):
    assert without_addresses(text) == clean


def test_long_engine_messages_are_cut():
    told = answer(EngineRefused("status", status=400, error={"message": "a." * 100_000}), RID)
    assert len(told.error["message"]) == 4096


@pytest.mark.parametrize("value", ["half \ud800 a pair", 10**40])
def test_an_engines_error_object_that_is_odd_json_is_passed_on(value: object) -> None:
    refused = EngineRefused("status 400", status=400, error={"message": "no", "param": value})
    assert json.loads(answer(refused, "rid").body())["error"]["param"] == value
