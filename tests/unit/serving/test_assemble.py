"""serving/assemble.py: a stream's pieces become the document that a plain request would have got."""

from __future__ import annotations

import json
from typing import Any

import pytest

from narwhal.engine.events import decode_event
from narwhal.errors import InvariantViolation, StreamBroken
from narwhal.model.request import Api
from narwhal.serving.assemble import AssemblePlan, Assembler
from tests.support.clients import KeptFlow
from tests.support.ticking import TickingClock

TOP = {"id": "cmpl-1", "created": 1700000000, "model": "m", "system_fingerprint": "fp"}
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


class Rig:
    def __init__(self, api: Api = Api.CHAT, *, token_ids: bool = False, limit: int = 1 << 20) -> None:
        self.flow = KeptFlow()
        self.assembler = Assembler(AssemblePlan(api, token_ids, limit), clock=TickingClock())
        self.assembler.on_open(self.flow)

    def feed(self, *documents: Any, end: bool = True) -> Rig:
        for document in documents:
            raw = b"data: " + json.dumps(document).encode() + b"\n\n"
            self.assembler.on_events([decode_event(raw)])
        if end:
            self.assembler.on_events([decode_event(b"data: [DONE]\n\n")])
        return self

    @property
    def document(self) -> Any:
        assert self.flow.error is None, self.flow.error
        assert self.assembler.tally.done
        return json.loads(self.assembler.body())

    @property
    def choice(self) -> Any:
        (choice,) = self.document["choices"]
        return choice

    def fault(self) -> str:
        assert isinstance(self.flow.error, StreamBroken)
        return self.flow.error.kind


def chat(delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason, **more}
    return {**TOP, "object": "chat.completion.chunk", "choices": [choice]}


def text(piece: str, reason: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": piece, "finish_reason": reason, **more}
    return {**TOP, "object": "text_completion", "choices": [choice]}


def usage() -> dict[str, Any]:
    return {**TOP, "choices": [], "usage": USAGE}


ROLE = chat({"role": "assistant", "content": ""})


def test_a_completion_becomes_one_document() -> None:
    rig = Rig(Api.COMPLETIONS).feed(text("Hé"), text("llo"), text("", "stop", stop_reason=7), usage())
    assert rig.document == {
        **TOP,
        "object": "text_completion",
        "choices": [
            {"index": 0, "text": "Héllo", "logprobs": None, "finish_reason": "stop", "stop_reason": 7}
        ],
        "usage": USAGE,
    }


def test_a_chat_becomes_one_document() -> None:
    rig = Rig().feed(ROLE, chat({"content": "Hi"}), chat({"content": " you"}), chat({}, "stop"), usage())
    assert rig.document == {
        **TOP,
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi you", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": USAGE,
    }


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content", "refusal"])
def test_other_texts_of_a_message(key: str) -> None:
    rig = Rig().feed(ROLE, chat({key: "be"}), chat({key: "cause"}), chat({"content": "x"}, "stop"))
    assert rig.choice["message"][key] == "because"
    assert rig.choice["message"]["content"] == "x"


def test_tool_calls_are_put_together_by_index() -> None:
    def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        name = {"name": more.pop("name")} if "name" in more else {}
        return {"index": index, "function": {**name, "arguments": arguments}, **more}

    rig = Rig().feed(
        ROLE,
        chat({"tool_calls": [call(0, "", id="a", type="function", name="f")]}),
        chat({"tool_calls": [call(1, '{"y"', id="b", type="function", name="g"), call(0, '{"x"')]}),
        chat({"tool_calls": [call(0, ":1}")]}),
        chat({"tool_calls": [call(1, ":2}")]}),
        chat({}, "tool_calls"),
    )
    assert rig.choice["message"]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": '{"y":2}'}},
    ]
    assert rig.choice["message"]["content"] is None
    assert rig.choice["finish_reason"] == "tool_calls"


def test_a_legacy_function_call_is_put_together() -> None:
    rig = Rig().feed(
        ROLE,
        chat({"function_call": {"name": "f", "arguments": ""}}),
        chat({"function_call": {"arguments": '{"x"'}}),
        chat({"function_call": {"arguments": ":1}"}}, "function_call"),
    )
    assert rig.choice["message"]["function_call"] == {"name": "f", "arguments": '{"x":1}'}


def test_an_empty_answer_has_empty_content() -> None:
    assert Rig().feed(ROLE, chat({}, "stop")).choice["message"]["content"] == ""
    assert Rig(Api.COMPLETIONS).feed(text("", "stop")).choice["text"] == ""


def test_logprobs_of_completions_grow_list_by_list() -> None:
    def piece(token: str, offset: int) -> dict[str, Any]:
        return {
            "tokens": [token],
            "token_logprobs": [-0.5],
            "text_offset": [offset],
            "top_logprobs": [{token: -0.5}],
        }

    rig = Rig(Api.COMPLETIONS).feed(
        text("a", logprobs=piece("a", 0)), text("b", "stop", logprobs=piece("b", 1))
    )
    assert rig.choice["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -0.5],
        "text_offset": [0, 1],
        "top_logprobs": [{"a": -0.5}, {"b": -0.5}],
    }


def test_logprobs_of_chat_grow() -> None:
    one, two = {"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2.0}
    rig = Rig().feed(
        ROLE,
        chat({"content": "a"}, logprobs={"content": [one]}),
        chat({"content": "b"}, "stop", logprobs={"content": [two], "refusal": None}),
    )
    assert rig.choice["logprobs"] == {"content": [one, two]}


def test_token_ids_are_given_only_when_asked() -> None:
    first = text("a", token_ids=[1], prompt_token_ids=[7, 8])
    last = text("b", "stop", token_ids=[2, 3], prompt_token_ids=None)
    assert "token_ids" not in Rig(Api.COMPLETIONS).feed(first, last).choice
    choice = Rig(Api.COMPLETIONS, token_ids=True).feed(first, last).choice
    assert (choice["token_ids"], choice["prompt_token_ids"]) == ([1, 2, 3], [7, 8])


def test_prompt_token_ids_of_chat_stand_at_the_top() -> None:
    role = {**ROLE, "prompt_token_ids": [7, 8]}
    document = Rig(token_ids=True).feed(role, chat({"content": "a"}, "stop", token_ids=[1])).document
    assert document["prompt_token_ids"] == [7, 8]
    assert document["choices"][0]["token_ids"] == [1]


def test_prompt_logprobs_are_kept_where_they_came() -> None:
    rows = [None, {"5": {"logprob": -1.0}}]
    assert (
        Rig(Api.COMPLETIONS).feed(text("a", "stop", prompt_logprobs=rows)).choice["prompt_logprobs"] == rows
    )
    document = Rig().feed({**ROLE, "prompt_logprobs": rows}, chat({}, "stop")).document
    assert document["prompt_logprobs"] == rows


def test_a_lone_surrogate_of_an_engine_is_no_crash() -> None:
    raw = b'data: {"choices":[{"index":0,"text":"\\ud800x","finish_reason":"stop"}]}\n\n'
    rig = Rig(Api.COMPLETIONS)
    rig.assembler.on_events([decode_event(raw)])
    rig.feed()
    assert rig.choice["text"] == "\ud800x"


@pytest.mark.parametrize("odd", [{"x": 1}, {"choices": []}, {"choices": [], "id": 7}])
def test_events_without_a_choice_do_no_harm(odd: Any) -> None:
    assert Rig().feed(ROLE, odd, chat({"content": "a"}, "stop")).choice["message"]["content"] == "a"


def test_null_and_what_is_left_out_add_nothing() -> None:
    """All that an event may have as null, and a call that is known by its place alone."""
    names = ("role", "content", "refusal", "reasoning", "tool_calls", "function_call")
    nothing = chat(dict.fromkeys(names), logprobs=None, token_ids=None)
    call = {"index": None, "id": "c1", "type": None, "function": None}
    end = {**TOP, "choices": [{"index": 0, "finish_reason": "tool_calls"}]}
    calls = [call, {"index": 0, "function": {"name": "f", "arguments": None}}]
    message = Rig().feed(nothing, chat({"tool_calls": calls}), nothing, end).choice["message"]
    assert message == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}],
    }


def test_the_first_choice_is_the_answer() -> None:
    both = text("a", "stop")
    both["choices"].append({"index": 1, "text": "b", "finish_reason": None})
    assert Rig(Api.COMPLETIONS).feed(both).choice["text"] == "a"


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (chat({}, "abort"), "bad_finish"),
        (chat({}, "error"), "bad_finish"),
        ({"error": {"message": "no"}}, "error_object"),
        (chat({"content": "more"}), "early_end"),
    ],
)
def test_a_bad_end_is_no_answer(last: Any, kind: str) -> None:
    assert Rig().feed(ROLE, chat({"content": "cut"}), last).fault() == kind


@pytest.mark.parametrize("piece", [text("x" * 600), text("", token_ids=list(range(90))), text("é" * 300)])
def test_an_answer_over_the_limit_is_broken_off(piece: Any) -> None:
    rig = Rig(Api.COMPLETIONS, limit=1000).feed(*[piece] * 2, end=False)
    assert rig.fault() == "too_large"


def test_the_limit_is_of_the_answer_not_of_its_events() -> None:
    rig = Rig(Api.COMPLETIONS, limit=1000).feed(*[text("x")] * 500, text("", "stop"))
    assert rig.choice["text"] == "x" * 500


def test_a_body_over_the_limit_is_refused_at_the_end_too() -> None:
    rig = Rig(Api.COMPLETIONS, limit=200).feed(text("\n" * 100, "stop"))
    with pytest.raises(StreamBroken) as caught:
        rig.assembler.body()
    assert caught.value.kind == "too_large"


def test_a_leg_that_was_not_opened_decoded_is_a_bug() -> None:
    with pytest.raises(InvariantViolation):
        Rig().assembler.on_plain(b"", 1)
