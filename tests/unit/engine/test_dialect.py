"""engine/dialect.py: bodies of the legs, and what their answers say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from narwhal.engine.dialect import make_dialect
from narwhal.errors import ConfigError, EngineRefused, HandoffInvalid, StreamBroken
from narwhal.model.request import Api, InferenceRequest
from narwhal.ports import EngineReply, KvDescriptor
from tests.unit.engine.test_kv_transfer import RECORDED

VLLM = make_dialect("vllm", "nixl")
DESCRIPTOR = KvDescriptor("engine-1", RECORDED)
BIG = 123456789012345678901234567890


def request(body: str, api: Api = Api.COMPLETIONS) -> InferenceRequest:
    fields = json.loads(body)
    return InferenceRequest(
        api=api,
        rid="r",
        client_rid=None,
        fields=fields,
        body=body.encode(),
        stream=bool(fields.get("stream")),
        include_usage=False,
        return_token_ids=False,
        arrived_at=0.0,
        arrived_wall=0.0,
    )


def reply(document: Any, status: int = 200, **headers: str) -> EngineReply:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return EngineReply(status, headers, body)


# --- bodies ---


def test_prefill_is_one_token_not_streamed_and_asks_for_a_handoff() -> None:
    body = VLLM.prefill_body(
        request(
            '{"prompt":"é","stream":true,"stream_options":{"include_usage":true},"min_tokens":5,"max_tokens":9}'
        )
    )
    assert json.loads(body) == {
        "prompt": "é",
        "max_tokens": 1,
        "kv_transfer_params": {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        },
    }


def test_chat_prefill_limits_both_names() -> None:
    body = json.loads(VLLM.prefill_body(request('{"messages":[],"max_completion_tokens":70}', Api.CHAT)))
    assert (body["max_tokens"], body["max_completion_tokens"]) == (1, 1)


def test_decode_of_a_streaming_client_is_its_own_bytes_with_fields_added() -> None:
    text = '{"prompt": "a  b",\n "seed": 123456789012345678901234567890, "x": 1.50, "stream": true}'
    body = VLLM.decode_body(request(text), DESCRIPTOR)
    assert body.startswith(text[:-1].encode())
    assert json.loads(body) == {
        **json.loads(text),
        "stream_options": {"include_usage": True},
        "kv_transfer_params": RECORDED,
    }


def test_decode_on_the_producer_carries_no_descriptor() -> None:
    text = '{"prompt":"a","stream":true,"stream_options":{"include_usage":true}}'
    assert VLLM.decode_body(request(text), None) == text.encode()


@pytest.mark.parametrize("asked", ['"include_usage":false,', '"include_usage":null,', ""])
def test_decode_keeps_other_stream_options_and_asks_for_one_usage_event(asked: str) -> None:
    options = "{" + asked + '"continuous_usage_stats":true,"other":1}'
    body = json.loads(
        VLLM.decode_body(request(f'{{"prompt":"a","stream":true,"stream_options":{options}}}'), None)
    )
    assert body["stream_options"] == {"include_usage": True, "other": 1}


def test_usage_in_every_event_is_for_the_client_that_asked_for_usage() -> None:
    options = '{"include_usage":true,"continuous_usage_stats":true}'
    body = VLLM.decode_body(request(f'{{"prompt":"a","stream":true,"stream_options":{options}}}'), None)
    assert json.loads(body)["stream_options"] == json.loads(options)


@pytest.mark.parametrize("stream", ["", ',"stream":false', ',"stream":null'])
def test_decode_is_streamed_whatever_the_client_asked(stream: str) -> None:
    body = json.loads(VLLM.decode_body(request('{"prompt":"a"' + stream + "}"), DESCRIPTOR))
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["kv_transfer_params"] == RECORDED


@pytest.mark.parametrize("stream", ["true", "false"])
def test_unknown_fields_and_integers_of_any_size_pass_on_both_legs(stream: str) -> None:
    vendor = '{"x":[1,2.5,null,"\\u00e9"]}'
    text = f'{{"prompt":"a","stream":{stream},"seed":{BIG},"vendor":{vendor}}}'
    for body in (VLLM.prefill_body(request(text)), VLLM.decode_body(request(text), DESCRIPTOR)):
        sent = json.loads(body)
        assert sent["seed"] == BIG
        assert sent["vendor"] == {"x": [1, 2.5, None, "é"]}


def test_trailing_space_of_a_body_does_no_harm() -> None:
    assert (
        json.loads(VLLM.decode_body(request('{"prompt":"a","stream":true} \n'), DESCRIPTOR))["stream"] is True
    )


def test_a_descriptor_goes_on_unchanged_whatever_else_it_holds() -> None:
    params = RECORDED | {"new_key": {"deep": [1, None, "x"]}, "big": BIG}
    answer = VLLM.read_prefill(reply({"choices": [], "kv_transfer_params": params}), "p0")
    sent = json.loads(VLLM.decode_body(request('{"prompt":"a","stream":true}'), answer))
    assert sent["kv_transfer_params"] == params


@pytest.mark.parametrize("value", [rb'"\ud800"', b'"\xed\xa0\x80"'], ids=["escaped", "raw"])
def test_a_descriptor_that_cannot_be_written_down_again_is_the_producers_fault(value: bytes) -> None:
    params = json.dumps(RECORDED | {"new_key": 0}).encode().replace(b'"new_key": 0', b'"new_key": ' + value)
    with pytest.raises(HandoffInvalid) as caught:
        VLLM.read_prefill(EngineReply(200, {}, b'{"kv_transfer_params":' + params + b"}"), "p0")
    assert caught.value.iid == "p0"


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_prefill_that_was_cut_is_no_success_whatever_it_hands_over(reason: str) -> None:
    answer = {"choices": [{"index": 0, "finish_reason": reason}], "kv_transfer_params": RECORDED}
    with pytest.raises(StreamBroken, match=reason) as caught:
        VLLM.read_prefill(reply(answer), "p0")
    assert (caught.value.iid, caught.value.kind) == ("p0", "bad_finish")


@pytest.mark.parametrize("choices", [None, 5, ["x"], [{"finish_reason": ["abort"]}], [{}]])
def test_choices_of_a_prefill_may_be_of_any_shape(choices: Any) -> None:
    assert (
        VLLM.read_prefill(reply({"choices": choices, "kv_transfer_params": RECORDED}), "p0").params
        == RECORDED
    )


def test_tokenize_gets_only_what_it_knows() -> None:
    chat = '{"model":"m","messages":[{"role":"user"}],"tools":[],"temperature":1,"stream":true,"seed":4}'
    assert json.loads(VLLM.tokenize_body(request(chat, Api.CHAT))) == {
        "model": "m",
        "messages": [{"role": "user"}],
        "tools": [],
    }
    assert json.loads(VLLM.tokenize_body(request('{"prompt":"a","max_tokens":4}'))) == {"prompt": "a"}


# --- answers ---


def test_a_good_prefill_gives_its_descriptor() -> None:
    assert VLLM.read_prefill(reply({"kv_transfer_params": RECORDED}), "p0") == KvDescriptor(
        RECORDED["remote_engine_id"], RECORDED
    )


@pytest.mark.parametrize("params", [None, {}, RECORDED | {"remote_host": None}])
def test_a_prefill_without_a_usable_handoff_is_a_handoff_failure(params: Any) -> None:
    with pytest.raises(HandoffInvalid):
        VLLM.read_prefill(reply({"kv_transfer_params": params}), "p0")


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[1]", b"\xff", b"[" * 200_000])
def test_a_200_that_is_no_object_is_malformed(body: bytes) -> None:
    with pytest.raises(StreamBroken) as caught:
        VLLM.read_prefill(reply(body), "p0")
    assert (caught.value.kind, caught.value.iid) == ("malformed", "p0")


@pytest.mark.parametrize("document", [{"error": {"message": "no"}}, {"object": "error", "message": "no"}])
def test_an_error_object_in_a_200_is_told_apart(document: Any) -> None:
    with pytest.raises(StreamBroken) as caught:
        VLLM.read_prefill(reply(document), "p0")
    assert caught.value.kind == "error_object"


ERROR = {"message": "too long", "type": "BadRequestError", "code": 400}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"error": ERROR}, ERROR),
        ({"object": "error", **ERROR}, {"object": "error", **ERROR}),
        (b"<html>", {}),
        ({"detail": "Not Found"}, {}),
        ({"error": "text"}, {}),
        ([1], {}),
    ],
)
def test_a_refusal_carries_status_and_error_object(body: Any, error: Any) -> None:
    with pytest.raises(EngineRefused) as caught:
        VLLM.read_prefill(reply(body, status=400), "p0")
    assert (caught.value.status, caught.value.error) == (400, error)


@pytest.mark.parametrize(
    ("value", "seconds"), [("3", 3.0), ("0", 0.0), ("soon", None), ("-1", None), ("99999999", 3600.0)]
)
def test_retry_after_is_taken_in_seconds(value: str, seconds: float | None) -> None:
    with pytest.raises(EngineRefused) as caught:
        VLLM.read_prefill(reply({}, status=429, **{"retry-after": value}), "p0")
    assert caught.value.retry_after_s == seconds


def test_tokenize_gives_the_count() -> None:
    assert VLLM.read_tokenize(reply({"count": 12, "tokens": []}), "p0") == 12


@pytest.mark.parametrize("count", [None, -1, "12", True, 1.5])
def test_tokenize_without_a_count_is_malformed(count: Any) -> None:
    with pytest.raises(StreamBroken):
        VLLM.read_tokenize(reply({"count": count}), "p0")


# --- names ---


def test_unknown_names_are_refused_together_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        make_dialect("sglang", "mooncake")
    assert caught.value.problems == (
        "engine.dialect must be one of vllm, got 'sglang'",
        "engine.connector must be one of nixl, got 'mooncake'",
    )
