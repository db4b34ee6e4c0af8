from __future__ import annotations

from typing import Any

import pytest

from narwhal.sim.request import GenerateRequest, Refusal, read_generate, read_json
from narwhal.sim.settings import SimSettings
from narwhal.sim.speech import Speech
from narwhal.sim.text import text_prompt, token_prompt

SETTINGS = SimSettings(max_model_len=100)
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def read(fields: dict[str, Any], *, chat: bool = False) -> GenerateRequest:
    return read_generate(fields, SETTINGS, chat=chat)


def test_prompts_come_as_text_or_token_ids_alone_or_as_a_list_of_one() -> None:
    assert read({"prompt": "abcd"}).prompt == read({"prompt": ["abcd"]}).prompt == text_prompt("abcd")
    assert read({"prompt": [1, 2]}).prompt == read({"prompt": [[1, 2]]}).prompt == token_prompt([1, 2])


def test_content_parts_of_a_message_are_one_text() -> None:
    parts = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}
        ]
    }
    assert read(parts, chat=True).prompt == read(CHAT, chat=True).prompt


def test_completions_generate_16_tokens_unless_told_and_chat_until_it_stops() -> None:
    assert (read({"prompt": "x"}).limit, read({"prompt": "x"}).named_limit) == (16, True)
    chat = read(CHAT, chat=True)
    assert (chat.limit, chat.named_limit) == (100 - chat.prompt.count, False)


def test_max_completion_tokens_goes_before_max_tokens() -> None:
    assert read({**CHAT, "max_tokens": 9, "max_completion_tokens": 4}, chat=True).limit == 4


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"prompt": "x", "model": "other"}, 404),
        ({"prompt": "x", "n": 2}, 400),
        ({"prompt": ""}, 400),
        ({"prompt": []}, 400),
        ({"prompt": ["a", "b"]}, 400),
        ({"prompt": [True]}, 400),
        ({}, 400),
        ({"prompt": "x", "max_tokens": 0}, 400),
        ({"prompt": "x", "max_tokens": 100}, 400),
        ({"prompt": "x" * 400}, 400),
    ],
)
def test_what_vllm_refuses_is_refused(fields: dict[str, Any], status: int) -> None:
    with pytest.raises(Refusal) as caught:
        read(fields)
    assert caught.value.status == status
    assert caught.value.document()["error"]["code"] == status


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 100_000, b'"x"'])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal):
        read_json(body)


def test_integers_of_any_sensible_size_are_read() -> None:
    assert read_json(b'{"seed": 1' + b"0" * 400 + b"}")["seed"] == 10**400


def test_a_forced_tool_call_is_spoken_in_pieces() -> None:
    tools = {"tools": [{"type": "function", "function": {"name": "dive"}}], "tool_choice": "required"}
    speech = Speech(read({**CHAT, **tools}, chat=True), 1, natural_length=64)
    assert speech.finish_reason == "tool_calls"
    pieces = [speech.piece(position) for position in range(speech.length or 0)]
    first = (pieces[0].delta or {})["tool_calls"][0]
    assert first["function"]["name"] == "dive"


def test_thinking_comes_before_the_answer() -> None:
    speech = Speech(
        read({**CHAT, "chat_template_kwargs": {"enable_thinking": True}}, chat=True), 1, natural_length=64
    )
    deltas = [speech.piece(position).json.partition(b":")[0] for position in range(6)]
    assert deltas == [b'{"reasoning"'] * 4 + [b'{"content"'] * 2


def test_a_script_is_followed_to_the_letter() -> None:
    script = {"vllm_xargs": {"sim_script": '["a", {"refusal": "no"}]'}}
    speech = Speech(read({**CHAT, **script}, chat=True), 1, natural_length=64)
    assert [speech.piece(position).json for position in range(2)] == [b'{"content":"a"}', b'{"refusal":"no"}']
    assert speech.length == 2


@pytest.mark.parametrize("script", ["", "[]", "{}", "[3]", 7])
def test_a_script_that_is_none_is_refused(script: Any) -> None:
    with pytest.raises(Refusal, match="sim_script"):
        Speech(read({"prompt": "x", "vllm_xargs": {"sim_script": script}}), 1, natural_length=64)
