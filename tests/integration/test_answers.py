"""What clients get through both legs is what one engine would have answered them alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import EngineProcess, engine_process
from tests.support.router import Router, fleet_document, router_process
from tests.support.wire import Answer, ask, play

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "dive", "parameters": {"type": "object"}}}
LEGACY = [
    {"function_call": {"name": "dive", "arguments": ""}},
    {"function_call": {"arguments": '{"depth":'}},
    {"function_call": {"arguments": " 1500}"}},
]
TWO_CALLS = [
    {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]},
    {
        "tool_calls": [
            {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{"}}
        ]
    },
    {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
    {"tool_calls": [{"index": 1, "function": {"arguments": "}"}}]},
]


def scripted(*steps: Any) -> dict[str, Any]:
    return {"vllm_xargs": {"sim_script": json.dumps(steps)}}


REQUESTS = {
    "text": (COMPLETIONS, {"prompt": "Tell me", "max_tokens": 30}),
    "token IDs as prompt": (COMPLETIONS, {"prompt": [5, 6, 7], "max_tokens": 4}),
    "text with IDs": (COMPLETIONS, {"prompt": "Tell me", "max_tokens": 9, "return_token_ids": True}),
    "text with logprobs": (COMPLETIONS, {"prompt": "Tell me", "max_tokens": 9, "logprobs": 1}),
    "text with a stop": (COMPLETIONS, {"prompt": "Tell me", "max_tokens": 64, "stop": ["ice", "sea", "and"]}),
    "text with emoji": (COMPLETIONS, {"prompt": "x", **scripted("🐋", " ", "\n\n", 'a"b\\', "\u2028")}),
    "chat": (CHAT, {"messages": [{"role": "user", "content": "hi"}]}),
    "chat with IDs": (CHAT, {"messages": [{"role": "user", "content": "hi"}], "return_token_ids": True}),
    "chat with logprobs": (CHAT, {"messages": [{"role": "user", "content": "hi"}], "logprobs": True}),
    "reasoning": (
        CHAT,
        {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"enable_thinking": True}},
    ),
    "tool call": (
        CHAT,
        {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], "tool_choice": "required"},
    ),
    "two tool calls": (CHAT, {"messages": [{"role": "user", "content": "x"}], **scripted(*TWO_CALLS)}),
    "legacy function call": (CHAT, {"messages": [{"role": "user", "content": "x"}], **scripted(*LEGACY)}),
    "refusal": (
        CHAT,
        {"messages": [{"role": "user", "content": "x"}], **scripted({"refusal": "I"}, {"refusal": " won't"})},
    ),
}
ONLY_THE_REQUESTS_OWN = ("id", "created")


@dataclass(frozen=True, slots=True)
class Site:
    router: Router
    engines: EngineProcess

    @property
    def alone(self) -> str:
        """An engine that serves whole requests by itself."""
        return self.engines.engines[2].url


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with engine_process(3, "--prefill", "0", "--interval", "0") as engines:
        fleet = fleet_document(engines.engines[:2])
        with router_process(Path(tmp_path_factory.mktemp("router")), fleet) as router:
            yield Site(router, engines)


def meaning(value: Any) -> Any:
    """A document without keys that are null or empty: what is absent and what is null say the same."""
    if isinstance(value, dict):
        return {key: meaning(each) for key, each in value.items() if each not in (None, [], "")}
    return [meaning(each) for each in value] if isinstance(value, list) else value


def forget_call_ids(document: dict[str, Any], part: str) -> None:
    """Tool calls have random IDs."""
    for choice in document["choices"]:
        for call in choice.get(part, {}).get("tool_calls", ()):
            call.pop("id", None)


def get(url: str, path: str, fields: dict[str, Any]) -> Answer:
    answer = play(ask(url, path, body={"model": "simulated", **fields}))
    assert answer.status == 200, answer.body
    return answer


@pytest.mark.parametrize("name", REQUESTS)
def test_a_plain_answer_is_the_engines(site: Site, name: str) -> None:
    path, fields = REQUESTS[name]
    through, alone = (get(url, path, fields).json() for url in (site.router.url, site.alone))
    for document in (through, alone):
        assert {type(document.pop(key)) for key in ONLY_THE_REQUESTS_OWN} == {str, int}
        forget_call_ids(document, "message")
    assert meaning(through) == meaning(alone)
    assert through["choices"][0].keys() >= {"index", "finish_reason", "logprobs"}


@pytest.mark.parametrize("usage", [False, True], ids=["no usage asked", "usage asked"])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_stream_is_the_engines_event_by_event(site: Site, name: str, usage: bool) -> None:
    path, fields = REQUESTS[name]
    asked = {**fields, "stream": True}
    if usage:
        asked["stream_options"] = {"include_usage": True}
    through, alone = (get(url, path, asked) for url in (site.router.url, site.alone))
    for answer in (through, alone):
        assert (answer.complete, answer.events[-1]) == (True, "[DONE]")
    events, expected = through.documents, alone.documents
    for event in (*events, *expected):
        for key in ONLY_THE_REQUESTS_OWN:
            del event[key]
        forget_call_ids(event, "delta")
    assert events == expected


def test_the_journal_has_one_row_per_request_with_the_engines_usage(site: Site) -> None:
    answer = get(site.router.url, COMPLETIONS, {"prompt": "journal", "max_tokens": 7, "stream": True})
    site.router.becomes_idle()
    rid = answer.headers["x-request-id"]
    row = site.router.journalled(rid)
    assert (row["output_len"], row["token_accounting"], row["terminal"]) == (7, "usage", "served")
    assert (row["prefill_iid"], row["decode_iid"], row["attempts"]) == ("e0", "e1", 1)
    assert 0 <= row["ttft_s"] <= row["duration_s"]
