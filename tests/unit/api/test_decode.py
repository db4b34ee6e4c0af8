"""Bodies of generation requests: what is refused, by which field, and what passes as sent."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.api.decode import decode_request
from narwhal.api.json_body import MAX_DEPTH, parse_object
from narwhal.errors import BadRequest, RequestError, UnknownModel
from narwhal.model.request import Api, InferenceRequest
from narwhal.model.wire_json import encode_json

CHAT_BODY = {"messages": [{"role": "user", "content": "Hi"}]}


def decode(body: bytes | dict[str, Any], api: Api = Api.COMPLETIONS) -> InferenceRequest:
    head = SimpleNamespace(
        api=api, rid="r1", client_rid=None, arrived_at=1.0, arrived_wall=2.0, traceparent=None
    )
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode_request(head, data, model="tiny")


def completion(**fields: Any) -> InferenceRequest:
    return decode({"prompt": "Hi", **fields})


def refusal(body: bytes | dict[str, Any], api: Api = Api.COMPLETIONS) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode(body, api)
    return caught.value


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"prompt": "Hi"} {}', "Extra data"),
        (b"[1]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"prompt": "\xff"}', "not valid UTF-8 at byte 12"),
        (b'{"prompt": "\xed\xa0\x80"}', "not valid UTF-8"),
        (b'\xef\xbb\xbf{"prompt": "Hi"}', "not valid JSON"),
        (b'{"prompt": "Hi", "x": NaN}', "NaN"),
        (b'{"prompt": "Hi", "x": [-Infinity]}', "-Infinity"),
        (b'{"prompt": "Hi", "x": 1e999}', "overflows"),
        (b'{"prompt": "Hi", "x": {"a": 1, "b": 2, "a": 3}}', "duplicate key: a"),
        (rb'{"prompt": "\ud800"}', "lone surrogate"),
        (rb'{"prompt": "Hi", "\uDC00": 1}', "lone surrogate"),
        (b'{"prompt": "Hi", "x": ' + b"[" * 100_000, "nested"),
        (b"[" * 100_000 + b"]" * 100_000, "nested"),
        (b'{"x":' * 100_000, "nested"),
        (b'{"prompt": "Hi", "x": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "nested"),
    ],
)
def test_malformed_bodies_are_refused_with_a_reason(body, says):
    assert says in str(refusal(body))


def test_nesting_up_to_the_limit_passes():
    deep = b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)
    assert parse_object(b'{"x": ' + deep + b"}")


def test_many_shallow_containers_are_no_deep_nesting():
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}] * 300}
    assert len(decode(body, Api.CHAT).fields["messages"]) == 300


def test_a_surrogate_pair_is_one_character():
    assert parse_object(rb'{"prompt": "\ud83d\ude00"}') == {"prompt": "\U0001f600"}


def test_an_escaped_backslash_before_ud_is_no_surrogate():
    assert parse_object(rb'{"prompt": "\\ud800"}') == {"prompt": r"\ud800"}


@pytest.mark.parametrize("text", [r"\ude00\ud83d", r"\ud83d\ud83d\ude00", r"\\\ud83d", r"\ud8007"])
def test_half_a_surrogate_pair_is_refused_wherever_it_stands(text):
    body = f'{{"prompt": "{text}", "x": {"7" * 5000}}}'
    assert "lone surrogate" in str(refusal(body.encode()))


@pytest.mark.parametrize("digits", [20, 400, 4000])
def test_integers_of_any_size_pass_as_sent(digits):
    number = 10**digits + 1
    assert completion(seed=number).fields["seed"] == number


@pytest.mark.parametrize("sign", ["", "-"])
def test_integers_beyond_what_python_converts_reach_the_engine_too(sign):
    number = sign + "7" * 100_000
    request = decode(f'{{"prompt":"Hi","x":[{number},1]}}'.encode())
    assert encode_json(request.fields) == request.body


@pytest.mark.parametrize("name", ["stream", "return_token_ids", "use_beam_search"])
@pytest.mark.parametrize("value", [1, 0, "true", [], {}])
def test_flags_must_be_booleans(name, value):
    assert refusal({"prompt": "Hi", name: value}).param == name


@pytest.mark.parametrize("name", ["n", "best_of", "max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [True, False, "1", 1.0, [1], {}, 0, -1])
def test_counts_must_be_positive_integers(name, value):
    assert refusal({"prompt": "Hi", name: value}).param == name


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("best_of", 2),
        ("use_beam_search", True),
        ("model", 7),
        ("model", ["tiny"]),
        ("prompt", 7),
        ("prompt", {"text": "Hi"}),
        ("prompt", True),
        ("prompt", []),
        ("prompt", ["Hi", "Ho"]),
        ("prompt", [[1], [2]]),
        ("prompt", [[1], "Hi"]),
        ("prompt", [1, "Hi"]),
        ("prompt", [True, False]),
        ("prompt", [1, 2.0]),
        ("prompt", [[]]),
        ("prompt", [[True]]),
        ("prompt", [["Hi"]]),
        ("prompt", [None]),
        ("prompt", None),
        ("messages", "Hi"),
        ("messages", ["Hi"]),
        ("messages", [None]),
        ("stream_options", True),
        ("kv_transfer_params", {"do_remote_prefill": True}),
        ("kv_transfer_params", None),
    ],
)
def test_refused_values_are_named_by_their_field(field, value):
    error = refusal({"prompt": "Hi", field: value})
    assert isinstance(error, BadRequest)
    assert error.param == field


def test_fields_inside_objects_are_named_by_their_path():
    assert refusal({"prompt": "Hi", "vllm_xargs": {"kv_transfer_params": {}}}).param == (
        "vllm_xargs.kv_transfer_params"
    )
    assert refusal({"prompt": "Hi", "stream_options": {"include_usage": 1}}).param == (
        "stream_options.include_usage"
    )


def test_each_route_needs_its_own_input():
    assert refusal({}).param == "prompt"
    assert refusal(CHAT_BODY).param == "prompt"
    assert refusal({"prompt": "Hi"}, Api.CHAT).param == "messages"
    assert refusal({"messages": []}, Api.CHAT).param == "messages"


def test_the_served_model_may_be_named_absent_or_null():
    for fields in ({}, {"model": None}, {"model": "tiny"}):
        assert completion(**fields).fields.get("model") == fields.get("model")
    error = refusal({"prompt": "Hi", "model": "other"})
    assert isinstance(error, UnknownModel)
    assert "other" in str(error)


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("Hi", None), (["Hi"], None), ([5, 6, 7], 3), ([[5, 6, 7]], 3), ("", None)],
)
def test_a_list_of_token_ids_or_of_one_member_is_one_prompt(prompt, count):
    assert completion(prompt=prompt).prompt_ids == count


@pytest.mark.parametrize("name", ["n", "best_of", "stream", "logprobs", "max_tokens", "stream_options"])
def test_null_is_the_same_as_absent(name):
    request = completion(**{name: None})
    assert not request.stream
    assert request.max_tokens is None


def test_what_the_router_reads_is_taken_from_the_body():
    request = decode(
        {
            **CHAT_BODY,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "max_tokens": 7,
            "max_completion_tokens": 9,
        },
        Api.CHAT,
    )
    assert (request.stream, request.include_usage, request.return_token_ids) == (True, True, True)
    assert request.max_tokens == 9
    assert completion(max_tokens=7).max_tokens == 7


def test_unknown_fields_and_the_bytes_are_kept_as_sent():
    body = b'{ "prompt":"Hi", "guided": {"b":1,"a":[1.50, 2]} }'
    request = decode(body)
    assert request.body == body
    assert request.fields["guided"] == {"b": 1, "a": [1.5, 2]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
SENDABLE = JSON.map(lambda value: json.dumps(value).encode())


@given(body=st.binary(max_size=64) | SENDABLE, api=st.sampled_from(Api))
def test_any_body_is_served_or_refused_but_never_crashes(body, api):
    try:
        decode(body, api)
    except RequestError as error:
        assert str(error)


@given(value=JSON)
def test_what_passes_means_the_same_to_the_engine(value):
    body = json.dumps({"x": value}).encode()
    try:
        parsed = parse_object(body)
    except BadRequest as error:
        assert "lone surrogate" in str(error)
    else:
        assert parsed == {"x": value}
