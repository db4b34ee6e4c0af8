"""What a hostile or broken client sends gets a clear answer, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from narwhal.sim.text import answer_text, text_prompt
from tests.support.engines import EngineProcess, engine_process
from tests.support.router import Router, fleet_document, router_process
from tests.support.wire import Answer, Wire, ask, play, request_bytes

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MIB = 1 << 20
ENVELOPE = {"message", "type", "param", "code"}


@dataclass(frozen=True, slots=True)
class Site:
    router: Router
    engines: EngineProcess

    @property
    def url(self) -> str:
        return self.router.url

    def sane(self) -> None:
        """The router still serves, and nothing is left in flight."""
        answer = play(ask(self.url, COMPLETIONS, body={"prompt": "still there?", "max_tokens": 2}))
        assert answer.status == 200, answer.body
        self.router.becomes_idle()
        self.engines.becomes_idle()
        assert "Traceback" not in self.router.process.output, self.router.process.output


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with engine_process(2, "--prefill", "0", "--interval", "0") as engines:
        fleet = fleet_document(engines.engines)
        with router_process(Path(tmp_path_factory.mktemp("router")), fleet) as router:
            yield Site(router, engines)


@pytest.fixture(autouse=True)
def leaves_nothing_behind(site: Site) -> Iterator[None]:
    yield
    site.sane()


def refused(answer: Answer, status: int) -> dict[str, Any]:
    """The envelope of a refusal, all four keys there and nothing internal in it."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert set(error) == ENVELOPE
    assert error["message"]
    for secret in ("Traceback", "127.0.0.1:", "narwhal/", "Error("):
        assert secret not in answer.body.decode()
    return dict(error)


def post(site: Site, body: Any, path: str = COMPLETIONS) -> Answer:
    return play(ask(site.url, path, body=body))


GOOD = {"prompt": "x", "max_tokens": 2}
GOOD_CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"model": 7}, "model"),
        (COMPLETIONS, {"stream": 1}, "stream"),
        (COMPLETIONS, {"stream": "true"}, "stream"),
        (COMPLETIONS, {"n": 2}, "n"),
        (COMPLETIONS, {"n": 0}, "n"),
        (COMPLETIONS, {"n": True}, "n"),
        (COMPLETIONS, {"n": 1.0}, "n"),
        (COMPLETIONS, {"best_of": 2}, "best_of"),
        (COMPLETIONS, {"best_of": "1"}, "best_of"),
        (COMPLETIONS, {"max_tokens": True}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": "9"}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": -1}, "max_tokens"),
        (CHAT, {"max_completion_tokens": 1.5}, "max_completion_tokens"),
        (CHAT, {"max_completion_tokens": False}, "max_completion_tokens"),
        (COMPLETIONS, {"prompt": 5}, "prompt"),
        (COMPLETIONS, {"prompt": {}}, "prompt"),
        (COMPLETIONS, {"prompt": None}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
        (COMPLETIONS, {"prompt": [[1], [2]]}, "prompt"),
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": "hi"}, "messages"),
        (CHAT, {"messages": ["hi"]}, "messages"),
        (COMPLETIONS, {"use_beam_search": True}, "use_beam_search"),
        (COMPLETIONS, {"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
        (COMPLETIONS, {"kv_transfer_params": None}, "kv_transfer_params"),
        (COMPLETIONS, {"vllm_xargs": {"kv_transfer_params": {}}}, "vllm_xargs.kv_transfer_params"),
        (CHAT, {"vllm_xargs": {"kv_transfer_params": None}}, "vllm_xargs.kv_transfer_params"),
    ],
)
def test_a_field_of_the_wrong_shape_is_400_and_named(
    site: Site, path: str, fields: dict[str, Any], param: str
) -> None:
    good = GOOD_CHAT if path == CHAT else GOOD
    error = refused(post(site, {**good, **fields}, path), 400)
    assert error["type"] == "invalid_request_error"
    assert param in str(error["param"])


@pytest.mark.parametrize("fields", [{"model": None}, {"n": None}, {"stream": None}, {"best_of": 1, "n": 1}])
def test_null_means_not_given(site: Site, fields: dict[str, Any]) -> None:
    assert post(site, {**GOOD, **fields}).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b'{"prompt": "x"} trailing',
        b'{"prompt": "x", "max_tokens": NaN}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "prompt": "y"}',
        b'{"prompt": "x", "stop": {"a": 1, "a": 2}}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "caf\xc3"}',
        b"\xef\xbb\xbf{}",
        b'{"prompt": "x", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "x", "a": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b"[" * 100_000,
    ],
    ids=lambda body: repr(body[:32]),
)
def test_a_body_that_is_no_clean_json_object_is_400(site: Site, body: bytes) -> None:
    assert refused(post(site, body), 400)["type"] == "invalid_request_error"


def test_a_tool_may_have_a_property_of_any_name(site: Site) -> None:
    """An engine reads its KV descriptor at two places; elsewhere the words are the client's own."""
    named = {"kv_transfer_params": {"type": "object"}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": named}}}
    fields = {**GOOD_CHAT, "tools": [tool], "metadata": {"deep": [named]}}
    assert post(site, fields, CHAT).status == 200
    prefill, decode = (
        json.loads(engine.stats(requests=True)["requests"][-1]["body"]) for engine in site.engines.engines
    )
    assert [body["tools"] for body in (prefill, decode)] == [[tool]] * 2
    assert [body["metadata"] for body in (prefill, decode)] == [{"deep": [named]}] * 2
    assert prefill["kv_transfer_params"]["do_remote_decode"] is True
    assert decode["kv_transfer_params"]["do_remote_prefill"] is True


def test_another_model_is_404(site: Site) -> None:
    error = refused(post(site, {**GOOD, "model": "gpt"}), 404)
    assert (error["type"], error["code"]) == ("invalid_request_error", "model_not_found")


def test_unknown_fields_and_huge_integers_reach_both_legs_as_sent(site: Site) -> None:
    novel = b'"seed": 123456789012345678901234567890, "novel": {"a": [1e3, null]}'
    body = b'{"prompt": "x", "max_tokens": 2, ' + novel + b"}"
    assert post(site, body).status == 200
    for engine in site.engines.engines:
        sent = engine.stats(requests=True)["requests"][-1]["body"]
        assert "123456789012345678901234567890" in sent
        assert json.loads(sent)["novel"] == {"a": [1000.0, None]}


def test_a_body_over_the_limit_is_413_by_its_content_length(site: Site) -> None:
    body = json.dumps({"prompt": "x" * (5 * MIB)}).encode()
    error = refused(post(site, body), 413)
    assert error["type"] == "request_too_large"


def test_a_body_over_the_limit_is_413_without_a_content_length_too(site: Site) -> None:
    async def scene() -> Answer:
        wire = await Wire.open(site.url)
        try:
            await wire.send(chunked_head())
            chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
            for _ in range(80):
                await wire.send(chunk)
            await wire.send(b"0\r\n\r\n")
            return await wire.answer()
        finally:
            wire.close()

    assert refused(play(scene()), 413)["type"] == "request_too_large"


def test_the_answer_to_a_body_that_is_too_long_does_not_wait_for_it(site: Site) -> None:
    async def scene() -> Answer:
        wire = await Wire.open(site.url)
        try:
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: t\r\ncontent-length: {1 << 40}\r\n\r\n"
            await wire.send(head.encode())
            return await wire.answer()
        finally:
            wire.close()

    refused(play(scene()), 413)


def test_a_body_just_within_the_limit_is_taken(site: Site) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 2, "user": ""}).encode()
    padded = body.replace(b'""', b'"' + b"u" * (4 * MIB - len(body)) + b'"')
    assert len(padded) == 4 * MIB
    assert post(site, padded).status == 200


def chunked_head(path: str = COMPLETIONS) -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n".encode()


def test_a_chunked_body_works_byte_by_byte(site: Site) -> None:
    async def scene() -> Answer:
        wire = await Wire.open(site.url)
        try:
            body = json.dumps(GOOD).encode()
            data = chunked_head() + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
            for at in range(len(data)):
                await wire.send(data[at : at + 1])
                await asyncio.sleep(0)
            return await wire.answer()
        finally:
            wire.close()

    assert play(scene()).status == 200


@pytest.mark.parametrize("offer", ["h2c", "websocket"])
def test_an_offered_upgrade_is_declined_and_the_request_served(site: Site, offer: str) -> None:
    offered = {"connection": "Upgrade, HTTP2-Settings", "upgrade": offer, "http2_settings": "AAMAAABk"}
    assert play(ask(site.url, COMPLETIONS, body=GOOD, **offered)).status == 200


@pytest.mark.parametrize("name", ["UPGRADE", "Upgrade"])
def test_an_upgrade_is_declined_in_any_case_and_in_a_packet_of_its_own(site: Site, name: str) -> None:
    async def scene() -> Answer:
        wire = await Wire.open(site.url)
        try:
            head, _, body = request_bytes("POST", COMPLETIONS, body=GOOD).partition(b"\r\n\r\n")
            await wire.send(head + b"\r\nconnection: upgrade\r\n")
            await asyncio.sleep(0.1)
            await wire.send(f"{name}: h2c\r\n\r\n".encode() + body)
            return await wire.answer()
        finally:
            wire.close()

    assert play(scene()).status == 200


def test_pipelined_requests_are_answered_in_turn(site: Site) -> None:
    async def scene() -> list[str]:
        wire = await Wire.open(site.url)
        try:
            prompts = ["one", "two", "three"]
            bodies = [
                {"prompt": prompt, "max_tokens": 9, "stream": index != 1}
                for index, prompt in enumerate(prompts)
            ]
            await wire.send(b"".join(request_bytes("POST", COMPLETIONS, body=body) for body in bodies))
            answers = [await wire.answer() for _ in prompts]
            return [
                answer.json()["choices"][0]["text"] if i == 1 else answer.text
                for i, answer in enumerate(answers)
            ]
        finally:
            wire.close()

    assert play(scene()) == [answer_text(text_prompt(prompt).seed, 9) for prompt in ("one", "two", "three")]


@pytest.mark.parametrize("size", [70_000, 3_000_000], ids=["70 kB", "3 MB"])
@pytest.mark.parametrize("lines", [1, 40], ids=["one line", "many lines"])
def test_a_head_that_is_too_long_is_431(site: Site, size: int, lines: int) -> None:
    async def scene() -> Answer | None:
        wire = await Wire.open(site.url)
        try:
            filler = {f"x_filler_{index}": "h" * (size // lines) for index in range(lines)}
            try:
                await wire.send(request_bytes("POST", COMPLETIONS, body=GOOD, **filler))
            except ConnectionError:
                return None
            return await wire.answer()
        finally:
            wire.close()

    answer = play(scene())
    assert answer is not None
    refused(answer, 431)


@pytest.mark.parametrize(
    "junk", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"G" * 200 + b"\r\n\r\n", b"\0" * 99]
)
def test_what_is_no_http_is_closed(site: Site, junk: bytes) -> None:
    async def scene() -> None:
        wire = await Wire.open(site.url)
        await wire.send(junk)
        data = await wire.everything()
        wire.close()
        assert data == b"" or data.startswith(b"HTTP/1.1 400")

    play(scene())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/completions/", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/models/other", 404),
        ("POST", "/ready", 405),
        ("GET", "/%00/../..", 404),
        ("GET", "/v1/models/", 404),
    ],
)
def test_unknown_paths_and_methods_have_the_envelope(site: Site, method: str, path: str, status: int) -> None:
    assert refused(play(ask(site.url, path, method=method)), status)["param"] is None or path.count("other")


NASTY = "%1B%5D0;owned%07%0A%7F%E2%80%AE" + "a" * 60_000


@pytest.mark.parametrize("path", [f"/{NASTY}", f"/v1/models/{NASTY}", f"/v1/models?{NASTY}"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_what_a_client_sent_is_repeated_short_and_printable(site: Site, method: str, path: str) -> None:
    answer = play(ask(site.url, path, method=method))
    if answer.status != 200:
        error = refused(answer, answer.status)
        assert error["message"].isprintable()
        assert len(answer.body) < 600
    else:
        assert (method, "?" in path) == ("GET", True)


@pytest.mark.parametrize("name", ["\x1b]0;owned\x07" + "m" * 5000, "\r\nx", "\u202e"])
def test_a_name_in_a_body_is_repeated_short_and_printable_too(site: Site, name: str) -> None:
    twice = json.dumps(name) + ": 1"
    for answer, status in (
        (post(site, {**GOOD, "model": name}), 404),
        (post(site, f'{{"prompt": "x", {twice}, {twice}}}'.encode()), 400),
        (play(ask(site.url, "/narwhal/lifecycle/yield", body={name: 1})), 400),
    ):
        error = refused(answer, status)
        assert error["message"].isprintable() and (error["param"] or "").isprintable()
        assert len(answer.body) < 700


def test_the_model_card_is_served_by_its_id_too(site: Site) -> None:
    listed = play(ask(site.url, "/v1/models")).json()
    assert listed["object"] == "list"
    (card,) = listed["data"]
    assert card == play(ask(site.url, "/v1/models/simulated")).json()
    assert (card["id"], card["object"], card["owned_by"]) == ("simulated", "model", "narwhal")
    assert card["max_model_len"] == 32768


def test_clients_credentials_and_ids_do_not_reach_the_engines(site: Site) -> None:
    theirs = {
        "authorization": "Bearer theirs",
        "cookie": "a=b",
        "x_request_id": "their-id",
        "x_narwhal_leg": "probe",
        "x_narwhal_epoch": "c/9",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    answer = play(ask(site.url, COMPLETIONS, body=GOOD, **theirs))
    assert answer.status == 200
    assert answer.headers["x-request-id"] != "their-id"
    for engine, leg in zip(site.engines.engines, ("prefill", "decode"), strict=True):
        seen = engine.stats(requests=True)["requests"][-1]
        headers = seen["headers"]
        assert (seen["leg"], headers["x-narwhal-leg"]) == (leg, leg)
        assert headers["traceparent"].split("-")[1] == "0af7651916cd43dd8448eb211c80319c"
        assert "cookie" not in headers
        assert "their" not in json.dumps(headers)
        assert "x-narwhal-epoch" not in headers


def test_clients_that_never_finish_are_let_go(site: Site) -> None:
    """A head has 10 s, a body 30 s after its last byte; both wait here side by side."""

    async def never_ends_its_head() -> None:
        wire = await Wire.open(site.url)
        await wire.send(b"POST /v1/completions HTTP/1.1\r\nhost:")
        assert await wire.ended()
        wire.close()

    async def drips_its_head() -> None:
        wire = await Wire.open(site.url)
        try:
            await wire.send(b"POST /v1/completions HTTP/1.1\r\n")
            while True:
                await wire.send(b"x-a: b\r\n")
                await asyncio.sleep(0.5)
        except ConnectionError:
            wire.close()

    async def never_ends_its_body() -> Answer:
        wire = await Wire.open(site.url)
        try:
            await wire.send(request_bytes("POST", COMPLETIONS, body=GOOD)[:-1])
            answer = await wire.answer()
            assert await wire.ended(), "408 closes the connection"
            return answer
        finally:
            wire.close()

    async def scene() -> Answer:
        async with asyncio.TaskGroup() as group:
            group.create_task(never_ends_its_head())
            group.create_task(drips_its_head())
            body = group.create_task(never_ends_its_body())
        return body.result()

    error = refused(play(scene(), within_s=90.0), 408)
    assert (error["type"], error["code"]) == ("invalid_request_error", "request_timeout")


def test_clients_that_leave_in_the_middle_of_their_request_leave_nothing(site: Site) -> None:
    async def scene() -> None:
        whole = request_bytes("POST", COMPLETIONS, body={**GOOD, "prompt": "y" * 400})
        for at in range(1, len(whole), 7):
            wire = await Wire.open(site.url)
            await wire.send(whole[:at])
            wire.close()

    play(scene())


def test_the_router_counts_these_as_invalid_and_nothing_as_failed(site: Site) -> None:
    before = site.router.state()
    refused(post(site, {**GOOD, "n": 2}), 400)
    refused(post(site, b"{"), 400)
    site.router.becomes_idle()
    after = site.router.state()
    assert after["invalid_requests"] == before["invalid_requests"] + 2
    assert after["failed"] == before["failed"] == 0
