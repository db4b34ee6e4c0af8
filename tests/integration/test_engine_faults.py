"""Every way an engine can fail, one by one: what the client sees (http-api.md section 1)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from narwhal.sim.text import answer_text, text_prompt
from tests.support.engines import EngineProcess, RemoteEngine, engine_process
from tests.support.router import FORGIVING, Router, fleet_document, router_process
from tests.support.wire import Answer, ask, play

PROMPT = "How deep does a narwhal dive?"
TOKENS = 6
TEXT = answer_text(text_prompt(PROMPT).seed, TOKENS)
CLIENTS = itertools.count()
REACHES_THE_CLIENT_AS_IS = (400, 413, 422)


@dataclass(frozen=True, slots=True)
class Site:
    router: Router
    engines: EngineProcess

    @property
    def producer(self) -> RemoteEngine:
        return self.engines.engines[0]

    @property
    def consumer(self) -> RemoteEngine:
        return self.engines.engines[1]

    def order(self, leg: str, fault: str, **fields: Any) -> None:
        engine = self.producer if leg == "prefill" else self.consumer
        engine.order(fault, leg=leg, **fields)


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with engine_process(2, "--prefill", "0", "--interval", "0.001") as engines:
        fleet = fleet_document(
            engines.engines,
            recovery=FORGIVING,
            serving={"prefill_timeout_s": 1.0, "max_response_bytes": 4 << 20},
            engine={"first_token_timeout_s": 1.0, "decode_read_timeout_s": 1.0, "tokenize_timeout_s": 0.5},
        )
        with router_process(Path(tmp_path_factory.mktemp("router")), fleet) as router:
            yield Site(router, engines)


@pytest.fixture
def site(standing: Site) -> Iterator[Site]:
    """Without faults before; nothing in flight after, on any side, and the next request is served."""
    for engine in standing.engines.engines:
        engine.reset()
    yield standing
    for engine in standing.engines.engines:
        engine.reset()
    answer = ask_for(standing)
    assert (answer.status, answer.text) == (200, TEXT), answer.body
    standing.router.becomes_idle()
    standing.engines.becomes_idle()
    assert "Traceback" not in standing.router.process.output, standing.router.process.output


def ask_for(site: Site, **fields: Any) -> Answer:
    """No two bodies are equal: the same one failing at both engines would be suspected poison."""
    user = f"client {next(CLIENTS)}"
    body = {"prompt": PROMPT, "max_tokens": TOKENS, "stream": True, "user": user, **fields}
    return play(ask(site.router.url, "/v1/completions", body=body))


def failed(answer: Answer, status: int, kind: str) -> dict[str, Any]:
    """A refusal with the envelope; no address and no exception text in it."""
    assert answer.status == status, answer.body
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == kind
    assert_nothing_internal(answer)
    return dict(error)


def assert_nothing_internal(answer: Answer) -> None:
    for secret in ("127.0.0.1", "Traceback", "Error(", "errno"):
        assert secret not in answer.body.decode()


def cut(answer: Answer, events: int) -> None:
    """A stream that failed after output: so many token events, our error event, no [DONE]."""
    assert answer.status == 200
    assert answer.complete, "the HTTP body itself ends cleanly"
    assert "[DONE]" not in answer.events
    *tokens, last = answer.documents
    assert len(tokens) == events
    assert set(last) == {"error"}
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert_nothing_internal(answer)


def outcome(site: Site, before: dict[str, Any]) -> str:
    """The one outcome that went up since `before`."""
    site.router.becomes_idle()
    after = site.router.state()
    names = ("served", "failed", "refused", "rejected", "expired", "cancelled", "invalid_requests")
    (one,) = [name for name in names if after[name] > before[name]]
    return one


STREAMS = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
LEGS = pytest.mark.parametrize("leg", ["prefill", "decode"])


@LEGS
@STREAMS
@pytest.mark.parametrize("status", [400, 413, 422, 401, 403, 404, 408, 429, 500, 503])
def test_error_statuses(site: Site, leg: str, stream: bool, status: int) -> None:
    before = site.router.state()
    site.order(leg, "status", status=status, retry_after=7, message="no http://127.0.0.1:9/x here", count=1)
    answer = ask_for(site, stream=stream)
    if status in REACHES_THE_CLIENT_AS_IS:
        assert answer.status == status
        assert answer.json()["error"]["type"] == "BadRequestError"
        assert_nothing_internal(answer)
        assert outcome(site, before) == "invalid_requests"
        return
    if status == 429:
        failed(answer, 429, "server_overloaded_error")
        assert answer.headers["retry-after"] == "7"
    else:
        failed(answer, 504 if status == 408 else 502, leg)
    assert outcome(site, before) == "failed"


@LEGS
@STREAMS
@pytest.mark.parametrize(
    ("fault", "fields", "status"),
    [
        ("hang", {}, 504),
        ("slow", {"seconds": 20}, 504),
        ("silent_first_token", {}, 504),
        ("rst", {"after": 0}, 502),
        ("error_in_200", {"after": 0}, 502),
        ("close", {"after": 0}, 502),
        ("wrong_model", {}, 502),
    ],
)
def test_failures_before_output_have_a_status(
    site: Site, leg: str, stream: bool, fault: str, fields: dict[str, Any], status: int
) -> None:
    before = site.router.state()
    # A reset of a connection that was idle is tried once more on a fresh one: two of them are a failure.
    site.order(leg, fault, count=2 if fault == "rst" else 1, **fields)
    failed(ask_for(site, stream=stream), status, leg)
    assert outcome(site, before) == "failed"


@LEGS
def test_a_refused_connection_is_502(site: Site, leg: str) -> None:
    engine = site.producer if leg == "prefill" else site.consumer
    engine.order("refuse")
    failed(ask_for(site), 502, leg)
    engine.clear()


@pytest.mark.parametrize(
    ("fault", "fields", "shown"),
    [
        ("stall", {"after": 2}, 2),
        ("close", {"after": 2}, 2),
        ("rst", {"after": 2}, 2),
        ("no_done", {"after": 2}, 2),
        ("no_done", {}, TOKENS),
        ("error_in_200", {"after": 2}, 2),
        ("abort", {"after": 3}, 2),
    ],
)
def test_failures_after_output_end_the_stream_with_an_error_event(
    site: Site, fault: str, fields: dict[str, Any], shown: int
) -> None:
    before = site.router.state()
    site.order("decode", fault, count=1, **fields)
    answer = ask_for(site)
    if fault == "rst":
        # A reset may overtake bytes that were read before it was seen.
        shown = len(answer.documents) - 1
    cut(answer, shown)
    assert outcome(site, before) == "failed"


@pytest.mark.parametrize(
    ("fault", "fields", "status"),
    [
        ("stall", {"after": 2}, 504),
        ("close", {"after": 2}, 502),
        ("rst", {"after": 2}, 502),
        ("no_done", {"after": 2}, 502),
        ("error_in_200", {"after": 2}, 502),
        ("abort", {"after": 3}, 502),
    ],
)
def test_a_plain_answer_that_breaks_off_is_no_answer(
    site: Site, fault: str, fields: dict[str, Any], status: int
) -> None:
    site.order("decode", fault, count=1, **fields)
    failed(ask_for(site, stream=False), status, "decode")


@pytest.mark.parametrize(
    ("fault", "status"), [("abort", 502), ("close", 502), ("stall", 504), ("error_in_200", 502)]
)
def test_a_prefill_answer_that_breaks_off_fails_the_prefill(site: Site, fault: str, status: int) -> None:
    site.order("prefill", fault, count=1)
    failed(ask_for(site), status, "prefill")
    assert site.consumer.stats()["legs"].get("decode", 0) == 0


@pytest.mark.parametrize(
    "variant",
    [
        "missing", "null", "not_object", "no_host", "no_port", "no_request_id", "no_engine_id", "text_port",
        "null_blocks", "empty_blocks", "negative_block", "text_block", "not_remote_prefill",
    ],
)  # fmt: skip
@STREAMS
def test_an_invalid_handoff_never_reaches_an_engine(site: Site, variant: str, stream: bool) -> None:
    site.order("prefill", "handoff", variant=variant, count=1)
    failed(ask_for(site, stream=stream), 502, "prefill")
    assert site.consumer.stats()["legs"].get("decode", 0) == 0


def test_a_producer_that_is_somebody_else_by_now_fails_the_decode(site: Site) -> None:
    site.order("prefill", "handoff", variant="unknown_engine", count=1)
    failed(ask_for(site, prompt="a prompt of its own"), 502, "decode")


@LEGS
def test_what_is_slow_but_in_time_is_served(site: Site, leg: str) -> None:
    site.order(leg, "slow_first_token", seconds=0.3, count=1)
    assert ask_for(site).text == TEXT


@STREAMS
def test_a_stall_that_ends_in_time_is_served(site: Site, stream: bool) -> None:
    site.order("decode", "stall", after=2, seconds=0.3, count=1)
    answer = ask_for(site, stream=stream)
    assert (answer.text if stream else answer.json()["choices"][0]["text"]) == TEXT


@pytest.mark.parametrize(
    "faults",
    [["crlf"], ["cr"], ["comments"], ["multi_line"], ["split_utf8"], ["one_byte"], ["comments", "multi_line"],
     ["crlf", "comments", "multi_line", "one_byte"], ["cr", "comments", "multi_line", "one_byte"]],
    ids="+".join,
)  # fmt: skip
@STREAMS
def test_framing_reaches_the_client_as_the_engine_chose_it(
    site: Site, faults: list[str], stream: bool
) -> None:
    for fault in faults:
        site.order("decode", fault, count=1)
    answer = ask_for(site, stream=stream)
    assert answer.status == 200, answer.body
    if not stream:
        assert answer.json()["choices"][0]["text"] == TEXT
        return
    assert (answer.text, answer.events[-1]) == (TEXT, "[DONE]")
    end = {"crlf": b"\r\n", "cr": b"\r"}.get(faults[0], b"\n")
    assert answer.body.count(end) >= 2 * TOKENS


def test_a_prefill_answer_byte_by_byte_is_as_good(site: Site) -> None:
    site.order("prefill", "one_byte", count=1)
    assert ask_for(site).text == TEXT


def test_huge_events_pass_and_what_is_over_the_response_limit_does_not(site: Site) -> None:
    site.order("decode", "huge", bytes=2 << 20, count=1)
    answer = ask_for(site, max_tokens=2)
    assert [len(event["choices"][0]["text"]) >> 20 for event in answer.documents] == [2, 2]
    site.order("decode", "huge", bytes=5 << 20, count=1)
    failed(ask_for(site, max_tokens=2), 502, "decode")
    site.order("decode", "huge", bytes=1 << 20, count=1)
    failed(ask_for(site, stream=False), 502, "decode")


@pytest.mark.parametrize("fault", ["hang", "status", "close", "rst", "error_in_200"])
def test_a_failed_count_does_not_fail_the_request(site: Site, fault: str) -> None:
    fields = {"status": 500} if fault == "status" else {}
    for engine in site.engines.engines:
        engine.order(fault, leg="tokenize", **fields)
    assert ask_for(site).text == TEXT


def test_slow_health_and_a_new_process_start_leave_the_data_path_alone(site: Site) -> None:
    for engine in site.engines.engines:
        engine.order("slow", leg="health", seconds=30)
        engine.order("process_start", leg="metrics")
    assert ask_for(site).text == TEXT


def test_a_dying_core_ends_the_stream(site: Site) -> None:
    site.consumer.order("slow_first_token", leg="decode", seconds=0.2, count=1)
    site.order("decode", "stall", after=2, count=1)
    site.consumer.order("core_dead")
    failed(ask_for(site), 502, "decode")
    site.consumer.clear()
