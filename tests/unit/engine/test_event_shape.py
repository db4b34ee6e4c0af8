"""engine/event_shape.py through decode_event: what an event of tokens may look like."""

from __future__ import annotations

from typing import Any

import pytest

from narwhal.engine.events import decode_event, is_plain
from narwhal.model.request import Api
from narwhal.ports import EventKind
from tests.unit.engine.test_events import chat, completion, sse


def choice(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": None, **fields}]}


def call(**fields: Any) -> dict[str, Any]:
    return chat({"tool_calls": [{"index": 0, **fields}]})


WRONG = {
    "choices are text": {"choices": "abc"},
    "choices are an object": {"choices": {"0": 1}},
    "a choice is null": {"choices": [None]},
    "a choice is a number": {"choices": [1]},
    "the second choice is a number": {"choices": [{"index": 0, "text": "x", "finish_reason": None}, 1]},
    "a choice without text or delta": choice(),
    "text is null": choice(text=None),
    "text is a number": choice(text=5),
    "text is a list": choice(text=[]),
    "text is a number at the end": {"choices": [{"index": 0, "text": 5, "finish_reason": "stop"}]},
    "delta is null": choice(delta=None),
    "delta is text": choice(delta="x"),
    "delta is a list": choice(delta=[]),
    "content is a number": chat({"content": 5}),
    "content is a list": chat({"content": ["x"]}),
    "reasoning is false": chat({"reasoning": False}),
    "reasoning_content is an object": chat({"reasoning_content": {}}),
    "refusal is a number": chat({"refusal": 1}),
    "role is a number": chat({"role": 1, "content": ""}),
    "tool calls are text": chat({"tool_calls": "x"}),
    "tool calls are an object": chat({"tool_calls": {}}),
    "a tool call is null": chat({"tool_calls": [None]}),
    "a tool call's index is text": call(index="0", function={"name": "f", "arguments": ""}),
    "a tool call's ID is a number": call(id=7),
    "a tool call's type is a list": call(type=[]),
    "a function is text": call(function="f"),
    "a function's name is a number": call(function={"name": 1}),
    "arguments are an object": call(function={"arguments": {}}),
    "a function call is text": chat({"function_call": "f"}),
    "a function call's arguments are a list": chat({"function_call": {"name": "f", "arguments": []}}),
    "index is text": choice(index="0", text="x"),
    "index is true": choice(index=True, text="x"),
    "index is null": choice(index=None, text="x"),
    "index is a fraction": choice(index=0.5, text="x"),
    "token IDs are a number": choice(text="x", token_ids=5),
    "log probabilities are a list": choice(text="x", logprobs=[]),
    "log probabilities of a token are a number": choice(text="x", logprobs={"tokens": 5}),
    "log probabilities of a chat are text": choice(delta={"content": "x"}, logprobs={"content": "x"}),
    "usage is text": {"choices": [], "usage": "many"},
    "usage is a list": {"choices": [], "usage": [1]},
    "usage beside a choice is a number": completion("x", usage=5),
    "a count is text": {"choices": [], "usage": {"completion_tokens": "4"}},
    "a count is true": {"choices": [], "usage": {"prompt_tokens": True}},
    "a count is a fraction": {"choices": [], "usage": {"total_tokens": 4.0}},
}


@pytest.mark.parametrize("document", WRONG.values(), ids=WRONG)
def test_what_no_client_could_read_is_refused(document: Any) -> None:
    with pytest.raises(ValueError):
        decode_event(sse(document))


def test_the_sentence_names_the_field_and_nothing_that_it_holds() -> None:
    with pytest.raises(ValueError, match=r"^choices\[0\]\.text must be a string, not a number$"):
        decode_event(sse(choice(text=5)))
    with pytest.raises(ValueError, match=r"^choices\[0\]\.delta\.tool_calls\[0\]\.function\.name must be"):
        decode_event(sse(call(function={"name": ["secret"]})))


@pytest.mark.parametrize(
    "document",
    [
        completion(""),
        completion("x", usage=None),
        completion("x", usage={"prompt_tokens": 3, "completion_tokens": None}),
        choice(text="x", logprobs=None, token_ids=None, stop_reason=7, prompt_logprobs=[None], odd=[1]),
        choice(text="x", logprobs={"tokens": ["x"], "top_logprobs": None, "odd": 1}, token_ids=[1]),
        {"choices": [{"text": "x", "finish_reason": None}]},
        chat({}),
        chat({"role": None, "content": None, "refusal": None, "reasoning": None, "tool_calls": None}),
        chat({"content": None, "tool_calls": [], "function_call": None}),
        call(id=None, type=None, function=None),
        call(index=None, id="a", type="function", function={"name": None, "arguments": None}),
        chat({"function_call": {"arguments": "{"}}),
        chat({"content": "x", "audio": {"id": 1}}),
    ],
    ids=repr,
)
def test_what_engines_write_is_taken(document: Any) -> None:
    assert decode_event(sse(document)).kind is EventKind.OUTPUT


@pytest.mark.parametrize("document", [{"choices": [{"index": 0, "finish_reason": "stop"}]}, chat({}, "stop")])
def test_an_end_may_bring_nothing(document: Any) -> None:
    assert decode_event(sse(document)).kind is EventKind.FINISH


@pytest.mark.parametrize("document", [{"x": 1}, {"choices": []}, {"choices": None, "usage": None}])
def test_an_event_without_a_choice_says_nothing(document: Any) -> None:
    assert decode_event(sse(document)).kind is EventKind.OTHER


OF_ROUTE = {Api.COMPLETIONS: completion("x"), Api.CHAT: chat({"content": "x"})}


@pytest.mark.parametrize("route", Api)
def test_an_event_is_of_the_route_that_was_asked(route: Api) -> None:
    (other,) = set(Api) - {route}
    assert decode_event(sse(OF_ROUTE[route]), route).kind is EventKind.OUTPUT
    with pytest.raises(ValueError, match=r"^choices\[0\] has \w+ for \w+: it is of the other route$"):
        decode_event(sse(OF_ROUTE[other]), route)


@pytest.mark.parametrize("route", Api)
def test_an_event_of_both_or_none_is_of_either_route(route: Api) -> None:
    both = choice(text="x", delta={"content": "x"})
    assert decode_event(sse(both), route).kind is EventKind.OUTPUT
    end = {"choices": [{"index": 0, "finish_reason": "stop"}]}
    assert decode_event(sse(end), route).kind is EventKind.FINISH
    assert decode_event(sse({"choices": [], "usage": {}}), route).kind is EventKind.USAGE


def test_an_error_object_is_one_whatever_stands_beside_it() -> None:
    assert decode_event(sse({"error": {"message": "no"}, "choices": None})).kind is EventKind.ERROR


NO_TEXT = [choice(text=5), choice(text=None), choice(delta=None), chat({"content": 5}), chat({"content": []})]


@pytest.mark.parametrize("document", NO_TEXT, ids=repr)
def test_an_event_whose_text_is_none_is_not_plain(document: Any) -> None:
    assert not is_plain(sse(document))


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"content": ""},
        {"reasoning": "x"},
        {"reasoning_content": "x"},
        {"content": None, "reasoning": "x"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ],
    ids=repr,
)
def test_what_models_say_is_plain(delta: dict[str, Any]) -> None:
    assert is_plain(sse(chat(delta)))
