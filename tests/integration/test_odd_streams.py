"""What a decode leg of the wrong kind comes to at the client, and what it tells of its engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
import pytest

from narwhal.model.evidence import FailureClass, LegFailed
from narwhal.model.request import Outcome
from tests.support.scripted import END, HEAD, Line, answer, chunk, scripted_engine
from tests.support.serving import Rig, RouterOptions, router
from tests.support.settings import engine_settings, fleet_config
from tests.unit.engine.test_events import chat, completion, sse
from tests.unit.engine.test_kv_transfer import RECORDED

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": [1, 2, 3], "max_tokens": 4},
    CHAT: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4},
}
HANDS_OFF = answer(200, json.dumps({"kv_transfer_params": RECORDED}).encode())
DONE = b"data: [DONE]\n\n"
LIMIT_S = 0.3

Speaks = Callable[[Line], Awaitable[None]]


def says(*events: bytes) -> Speaks:
    async def speak(line: Line) -> None:
        await line.say(HEAD)
        for event in events:
            await line.say(chunk(event))
            await asyncio.sleep(0.002)
        await line.say(END)

    return speak


async def ask(
    speak: Speaks, *, path: str = COMPLETIONS, stream: bool, **fields: Any
) -> tuple[httpx.Response, Rig]:
    """One request to an engine that takes both legs; its decode is what `speak` says."""

    async def script(line: Line) -> None:
        while True:
            head, _ = await line.request()
            if "x-narwhal-leg: prefill" in head.lower():
                await line.say(HANDS_OFF)
            else:
                await speak(line)

    limits = engine_settings(tokenize=False, first_token_timeout_s=5.0, decode_read_timeout_s=LIMIT_S)
    async with scripted_engine(script) as engine:
        async with router(fleet_config(engine.spec, engine=limits), RouterOptions()) as rig:
            response = await rig.http.post(path, json={**BODIES[path], "stream": stream, **fields})
            return response, rig


def told(response: httpx.Response) -> Sequence[Any]:
    data = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in data]


def assert_broken(response: httpx.Response, rig: Rig, *, way: str, shown: int | None = None) -> None:
    """A failure of the decode leg, of class `stream`. `shown`: so many events went before our error event;
    None: the request has its status."""
    if shown is None:
        assert response.status_code in (502, 504), response.text
        assert response.json()["error"]["code"] == "decode"
    else:
        *events, last = told(response)
        assert len(events) == shown
        assert set(last) == {"error"}
    (failed,) = rig.heard.of(LegFailed)
    assert (failed.failure, failed.way) == (FailureClass.STREAM, way)
    assert [outcome for _, outcome in rig.recorder.rows] == [Outcome.FAILED]


# --- the end -----------------------------------------------------------------------------------------

NO_REASON = [None, "", False, 7, [], {}]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("reason", NO_REASON, ids=repr)
async def test_a_reason_that_is_no_text_ends_nothing(reason: Any, path: str, stream: bool) -> None:
    event = completion("x", reason) if path == COMPLETIONS else chat({"content": "x"}, reason)
    response, rig = await ask(says(sse(event), sse(event), DONE), path=path, stream=stream)
    assert_broken(response, rig, way="stream:early_end", shown=2 if stream else None)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("reason", NO_REASON, ids=repr)
async def test_it_takes_nothing_from_a_reason_that_was_told(reason: Any, stream: bool) -> None:
    """Engines that write `""` where others write null are served."""
    events = [sse(completion("a", reason)), sse(completion("b", "stop")), sse(completion("", reason)), DONE]
    response, rig = await ask(says(*events), stream=stream)
    assert response.status_code == 200
    assert rig.heard.of(LegFailed) == []
    if stream:
        assert told(response)[-1] == "[DONE]"
    else:
        (choice,) = response.json()["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")


# --- types -------------------------------------------------------------------------------------------


def choice(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": None, **fields}]}


STREAMS = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
GOOD = {COMPLETIONS: sse(completion(" the")), CHAT: sse(chat({"content": " the"}))}
ENDS = {COMPLETIONS: sse(completion("", "stop")), CHAT: sse(chat({}, "stop"))}
USAGE = sse({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}})
WRONG = [
    (COMPLETIONS, choice(text=None)),
    (COMPLETIONS, choice(text=5)),
    (COMPLETIONS, choice(text=[])),
    (COMPLETIONS, choice()),
    (COMPLETIONS, {"choices": "abc"}),
    (COMPLETIONS, {"choices": [1]}),
    (COMPLETIONS, {"choices": [None]}),
    (COMPLETIONS, {"choices": {"0": 1}}),
    (COMPLETIONS, {"choices": [], "usage": "many"}),
    (CHAT, choice(delta=None)),
    (CHAT, choice(delta="x")),
    (CHAT, choice(delta={"content": 5})),
    (CHAT, choice(delta={"tool_calls": "x"})),
]


@STREAMS
@pytest.mark.parametrize(("path", "wrong"), WRONG, ids=repr)
async def test_tokens_of_the_wrong_type_are_no_answer(path: str, wrong: Any, stream: bool) -> None:
    response, rig = await ask(says(sse(wrong), sse(wrong), ENDS[path], USAGE, DONE), path=path, stream=stream)
    assert_broken(response, rig, way="stream:malformed")


@STREAMS
@pytest.mark.parametrize(("path", "wrong"), WRONG, ids=repr)
async def test_nor_are_they_behind_good_ones(path: str, wrong: Any, stream: bool) -> None:
    """Also where frames pass as they are: what is no text is not let through."""
    events = [GOOD[path]] * 5 + [sse(wrong), ENDS[path], USAGE, DONE]
    response, rig = await ask(says(*events), path=path, stream=stream)
    assert_broken(response, rig, way="stream:malformed", shown=5 if stream else None)


OTHER = {COMPLETIONS: CHAT, CHAT: COMPLETIONS}
ROLE = sse(chat({"role": "assistant", "content": ""}))


@STREAMS
@pytest.mark.parametrize("path", BODIES)
async def test_no_answer_is_made_of_the_other_routes_events(path: str, stream: bool) -> None:
    other = OTHER[path]
    response, rig = await ask(
        says(GOOD[other], GOOD[other], ENDS[other], USAGE, DONE), path=path, stream=stream
    )
    assert_broken(response, rig, way="stream:malformed")


@STREAMS
async def test_nor_does_a_role_event_make_a_chat_of_them(stream: bool) -> None:
    events = [ROLE, GOOD[COMPLETIONS], ENDS[COMPLETIONS], USAGE, DONE]
    response, rig = await ask(says(*events), path=CHAT, stream=stream)
    assert_broken(response, rig, way="stream:malformed")


@STREAMS
@pytest.mark.parametrize("path", BODIES)
async def test_nor_is_the_end_of_one_such(path: str, stream: bool) -> None:
    events = [GOOD[path], GOOD[path], ENDS[OTHER[path]], USAGE, DONE]
    response, rig = await ask(says(*events), path=path, stream=stream)
    assert_broken(response, rig, way="stream:malformed", shown=2 if stream else None)


# --- what trickles -----------------------------------------------------------------------------------


def trickles(begin: bytes, more: bytes) -> Speaks:
    """Two tokens, then something every few milliseconds."""

    async def speak(line: Line) -> None:
        await line.say(HEAD + chunk(GOOD[COMPLETIONS]))
        await asyncio.sleep(0.002)
        await line.say(chunk(GOOD[COMPLETIONS]) + chunk(begin))
        while True:
            await asyncio.sleep(0.02)
            await line.say(chunk(more))

    return speak


@STREAMS
@pytest.mark.parametrize(
    ("begin", "more"), [(b": ping\n\n", b": ping\n\n"), (b"\n", b"\n"), (b'data: {"id":"', b"x")], ids=repr
)
async def test_an_engine_that_only_says_that_it_is_there_is_silent(
    begin: bytes, more: bytes, stream: bool
) -> None:
    response, rig = await ask(trickles(begin, more), stream=stream)
    assert_broken(response, rig, way="stream:silence", shown=2 if stream else None)
