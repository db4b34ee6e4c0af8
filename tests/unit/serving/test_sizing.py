"""The estimate of prompt tokens where no count is to be had."""

from __future__ import annotations

from typing import Any

import pytest

from narwhal.model.request import Api, InferenceRequest
from narwhal.serving.sizing import estimate


def request(api: Api, **fields: Any) -> InferenceRequest:
    return InferenceRequest(
        api=api,
        rid="r",
        client_rid=None,
        fields=fields,
        body=b"",
        stream=False,
        include_usage=False,
        return_token_ids=False,
        arrived_at=0.0,
        arrived_wall=0.0,
    )


@pytest.mark.parametrize(
    ("prompt", "tokens"), [("x" * 38, 10), ("x" * 39, 11), ("", 1), (["x" * 38], 10), ([[1, 2]], 1)]
)
def test_text_is_characters_by_the_ratio_rounded_up(prompt, tokens):
    assert estimate(request(Api.COMPLETIONS, prompt=prompt), 3.8) == tokens


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("x" * 20, 10),
        ([{"type": "text", "text": "x" * 10}, {"type": "text", "text": "x" * 10}], 10),
        ([{"type": "image_url", "image_url": {"url": "x" * 1000}}, {"type": "text", "text": "xx"}], 1),
        (["x" * 10, {"text": None}, 7, None], 5),
        (None, 1),
        (7, 1),
    ],
)
def test_chat_counts_the_characters_of_all_contents_and_parts(content, tokens):
    messages = [{"role": "user", "content": content}]
    assert estimate(request(Api.CHAT, messages=messages), 2.0) == tokens


def test_every_message_counts():
    messages = [{"role": "system", "content": "x" * 10}, {"role": "user"}, {"content": "x" * 10}]
    assert estimate(request(Api.CHAT, messages=messages), 2.0) == 10
