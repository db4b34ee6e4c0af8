"""The simulated engine against the facts recorded from real vLLM engines (engines.md section 1)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from narwhal.sim.handoff import RemoteKv, Side
from narwhal.sim.peers import Peers, Pull
from narwhal.sim.rack import Stand
from narwhal.sim.settings import SimSettings
from narwhal.sim.text import answer_text, text_prompt
from tests.support.engines import QUICK, engines_here
from tests.support.wire import Answer, Wire, ask, play, until

SLOW_S = 0.2
PROMPT = "The narwhal is a small whale with a very long tooth."
WANTS_KV = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
RECORDED_DESCRIPTOR = {
    "do_remote_prefill": bool, "do_remote_decode": bool, "remote_block_ids": list, "remote_engine_id": str,
    "remote_request_id": str, "remote_host": str, "remote_port": int, "tp_size": int, "dcp_size": int,
    "pp_size": int, "remote_num_tokens": int, "remote_blocks_expiry_time": type(None), "transfer_mode": str,
    "remote_prefill_cached_tokens": int,
}  # fmt: skip


def right_text(tokens: int, prompt: str = PROMPT) -> str:
    return answer_text(text_prompt(prompt).seed, tokens)


async def prefill(stand: Stand, prompt: str = PROMPT, **fields: Any) -> Answer:
    body = {"model": "simulated", "prompt": prompt, "max_tokens": 1, "kv_transfer_params": WANTS_KV}
    return await ask(stand.url, "/v1/completions", body={**body, **fields}, x_request_id="rid")


async def decode(stand: Stand, kv: Mapping[str, Any] | None, tokens: int = 6, **fields: Any) -> Answer:
    body = {"prompt": PROMPT, "max_tokens": tokens, "stream": True, "kv_transfer_params": kv}
    return await ask(stand.url, "/v1/completions", body={**body, **fields})


async def handoff(stand: Stand, prompt: str = PROMPT) -> dict[str, Any]:
    kv = (await prefill(stand, prompt)).json()["kv_transfer_params"]
    assert isinstance(kv, dict)
    return kv


def test_prefill_answers_the_recorded_descriptor() -> None:
    async def scene() -> dict[str, Any]:
        async with engines_here(1) as (producer,):
            answer = await prefill(producer)
            assert producer.engine.ledger.held()[0].request_id.startswith("cmpl-rid-0-")
            document = answer.json()
            assert (answer.status, document["id"], document["usage"]["completion_tokens"]) == (
                200,
                "cmpl-rid",
                1,
            )
            return dict(document["kv_transfer_params"], side_port=producer.side_port)

    kv = play(scene())
    side_port = kv.pop("side_port")
    assert {key: type(value) for key, value in kv.items()} == RECORDED_DESCRIPTOR
    assert list(kv) == list(RECORDED_DESCRIPTOR), "in the recorded order"
    assert kv["remote_request_id"].startswith("cmpl-rid-0-")
    assert (kv["remote_host"], kv["remote_port"]) == ("127.0.0.1", side_port)
    assert kv["remote_block_ids"] == [[1]]
    assert kv["remote_num_tokens"] == text_prompt(PROMPT).count


def test_both_legs_give_the_right_text_and_free_the_producer() -> None:
    async def scene() -> None:
        async with engines_here(2) as (producer, consumer):
            answer = await decode(consumer, await handoff(producer))
            assert answer.text == right_text(6)
            assert answer.events[-1] == "[DONE]"
            assert producer.engine.pool.used == consumer.engine.pool.used == 0
            assert producer.engine.ledger.pulled == 1

    play(scene())


def test_the_stream_has_vllms_events() -> None:
    async def scene() -> Answer:
        async with engines_here(1) as (engine,):
            options = {"return_token_ids": True, "stream_options": {"include_usage": True}}
            return await decode(engine, None, 3, **options)

    answer = play(scene())
    first, *_, last, usage = answer.documents
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert first["choices"][0]["prompt_token_ids"] == text_prompt(PROMPT).ids()
    assert all(len(event["choices"][0]["token_ids"]) == 1 for event in answer.documents[:-1])
    assert [event["choices"][0]["finish_reason"] for event in answer.documents[:-1]] == [None, None, "length"]
    assert last["choices"][0]["stop_reason"] is None
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": text_prompt(PROMPT).count,
        "total_tokens": text_prompt(PROMPT).count + 3,
        "completion_tokens": 3,
    }


def test_token_ids_are_null_keys_when_nobody_asked() -> None:
    async def scene() -> Answer:
        async with engines_here(1) as (engine,):
            return await decode(engine, None, 2)

    answer = play(scene())
    assert len(answer.documents) == 2, "no usage event"
    for event in answer.documents:
        assert event["choices"][0]["token_ids"] is None
        assert event["choices"][0]["prompt_token_ids"] is None


def test_chat_begins_with_the_role_and_half_characters_have_no_text() -> None:
    async def scene() -> Answer:
        async with engines_here(1) as (engine,):
            body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 40}
            return await ask(engine.url, "/v1/chat/completions", body={**body, "return_token_ids": True})

    role, *tokens = play(scene()).documents
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert isinstance(role["prompt_token_ids"], list)
    halves = [event for event in tokens if event["choices"][0]["delta"]["content"] == ""]
    assert halves
    assert all(len(event["choices"][0]["token_ids"]) == 1 for event in halves)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_prompt_that_is_too_long_is_400_json(path: str, stream: bool) -> None:
    async def scene() -> Answer:
        async with engines_here(1, replace(QUICK, max_model_len=16)) as (engine,):
            prompt = "word " * 40
            asked = {"prompt": prompt} if path == "/v1/completions" else {"messages": [{"content": prompt}]}
            return await ask(engine.url, path, body={**asked, "stream": stream, "max_tokens": 1})

    answer = play(scene())
    assert answer.status == 400
    assert answer.error["type"] == "BadRequestError"
    assert "maximum context length is 16 tokens" in answer.error["message"]


def test_a_streamed_prefill_names_no_descriptor_but_pins_its_blocks() -> None:
    async def scene() -> None:
        async with engines_here(1) as (producer,):
            answer = await prefill(producer, stream=True)
            assert b"kv_transfer_params" not in answer.body
            assert producer.engine.pool.used == len(producer.engine.ledger.held()) == 1

    play(scene())


def test_an_unpulled_prefill_is_freed_when_its_lease_ends() -> None:
    async def scene() -> None:
        async with engines_here(1, replace(QUICK, kv_lease_s=0.05)) as (producer,):
            await prefill(producer)
            assert producer.engine.pool.used == 1
            await until(lambda: not producer.engine.pool.used)
            metrics = (await ask(producer.url, "/metrics")).body.decode()
            assert 'nixl_num_kv_expired_reqs_total{engine="0",model_name="simulated"} 1.0' in metrics

    play(scene())


def test_after_the_lease_reused_blocks_give_wrong_text_and_nothing_says_so() -> None:
    async def scene() -> None:
        settings = replace(QUICK, kv_lease_s=0.02, kv_blocks=2)
        async with engines_here(2, settings) as (producer, consumer):
            kv = await handoff(producer)
            await until(lambda: not len(producer.engine.ledger))
            for index in range(2):
                await prefill(producer, f"somebody else's prompt {index}", kv_transfer_params=None)
            answer = await decode(consumer, kv)
            assert answer.status == 200
            assert answer.events[-1] == "[DONE]"
            assert answer.text != right_text(6)

    play(scene())


def test_the_same_descriptor_twice_on_one_engine_is_right() -> None:
    async def scene() -> Sequence[str]:
        async with engines_here(2) as (producer, consumer):
            kv = await handoff(producer)
            return [(await decode(consumer, kv)).text for _ in range(2)]

    assert play(scene()) == [right_text(6)] * 2


def test_a_prompt_known_to_the_consumer_frees_the_producer_too() -> None:
    """vLLM's consumer notifies the producer of a full prefix cache hit as it does after a pull."""

    async def scene() -> None:
        async with engines_here(2) as (producer, consumer):
            for pulled in (1, 2):
                answer = await decode(consumer, await handoff(producer))
                assert answer.text == right_text(6)
                assert (len(producer.engine.ledger), producer.engine.ledger.pulled) == (0, pulled)

    play(scene())


def test_an_unknown_producer_on_the_right_port_is_500_at_once() -> None:
    async def scene() -> Answer:
        async with engines_here(2) as (producer, consumer):
            return await decode(consumer, {**await handoff(producer), "remote_engine_id": "somebody"})

    answer = play(scene())
    assert (answer.status, answer.error["code"]) == (500, 500)


def test_a_dead_producer_never_met_is_an_error_inside_a_200() -> None:
    async def scene() -> Answer:
        async with engines_here(2, replace(QUICK, unmet_peer_s=0.05)) as (producer, consumer):
            kv = await handoff(producer)
            producer.kill()
            return await decode(consumer, kv)

    answer = play(scene())
    assert answer.status == 200
    assert [event["error"]["code"] for event in answer.documents] == [500]
    assert answer.events[-1] == "[DONE]"


def test_a_dead_producer_met_before_is_500_again_and_again() -> None:
    async def scene() -> list[int]:
        async with engines_here(2) as (producer, consumer):
            await decode(consumer, await handoff(producer))
            kv = await handoff(producer, "another prompt")
            producer.kill()
            asked = {"prompt": "another prompt"}
            return [(await decode(consumer, kv, **asked)).status for _ in range(2)]

    assert play(scene()) == [500, 500]


@pytest.mark.parametrize(("met", "pull"), [(True, Pull.RIGHT), (False, Pull.UNMET)])
def test_a_slow_producer_is_waited_for_if_it_was_met(met: bool, pull: Pull) -> None:
    """The time of a handshake bounds nothing else: a producer that answers late has its blocks still."""

    async def scene() -> list[Pull]:
        late = 0.0 if met else SLOW_S
        answered: list[float] = []

        async def produce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal late
            await reader.readuntil(b"\r\n\r\n")
            pause, late = late, SLOW_S
            await asyncio.sleep(pause)
            with contextlib.suppress(ConnectionError):
                writer.write(b'HTTP/1.1 200 OK\r\n\r\n{"pull": "right"}')
                await writer.drain()
            writer.transport.abort()
            answered.append(pause)

        async with await asyncio.start_server(produce, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            slow = SimSettings(unmet_peer_s=SLOW_S / 4, kv_lease_s=SLOW_S * 100)
            peers = Peers(lambda *_: None, slow, edge=lambda _: "")
            ends: list[Pull] = []
            for number in range(2 if met else 1):
                kv = RemoteKv(Side("e0", "127.0.0.1", port), f"r{number}", (1,))
                peers.pull(kv, 7, done=ends.append)
                await until(lambda number=number: len(ends) > number)
            await until(lambda: len(answered) == len(ends))
            peers.close()
            return ends

    assert play(scene())[-1] is pull


def test_an_engine_set_to_recompute_answers_right_without_its_producer() -> None:
    async def scene() -> Answer:
        async with engines_here(2, replace(QUICK, recompute=True, unmet_peer_s=0.01)) as (producer, consumer):
            kv = await handoff(producer)
            producer.kill()
            return await decode(consumer, kv)

    assert play(scene()).text == right_text(6)


def test_a_restarted_producer_is_somebody_new_on_the_same_port() -> None:
    async def scene() -> None:
        async with engines_here(2) as (producer, consumer):
            old = await handoff(producer)
            producer.engine.restart(0.0)
            await until(lambda: not producer.engine.core_dead)
            new = await handoff(producer)
            assert new["remote_port"] == old["remote_port"]
            assert new["remote_engine_id"] != old["remote_engine_id"]
            assert (await decode(consumer, new)).text == right_text(6)

    play(scene())


@pytest.mark.parametrize(
    "spoilt",
    [
        {"remote_host": ""},
        {"remote_request_id": None},
        {"remote_block_ids": None},
        {"remote_block_ids": [[]]},
        {"remote_port": "18751"},
    ],
)
def test_a_malformed_descriptor_kills_the_decode_engine(spoilt: Mapping[str, Any]) -> None:
    async def scene() -> None:
        async with engines_here(2) as (producer, consumer):
            answer = await decode(consumer, {**await handoff(producer), **spoilt})
            assert answer.status == 500
            assert (await ask(consumer.url, "/health")).status == 200
            await until(lambda: consumer.engine.healthy_no_more)
            assert (await ask(consumer.url, "/health")).status == 503
            assert (await decode(consumer, None)).status == 500

    play(scene())


def test_too_few_block_ids_kill_the_decode_engine_too() -> None:
    async def scene() -> None:
        async with engines_here(2) as (producer, consumer):
            prompt = "a prompt of several blocks " * 20
            kv = await handoff(producer, prompt)
            fewer = {**kv, "remote_block_ids": [kv["remote_block_ids"][0][:-1]]}
            assert (await decode(consumer, fewer, prompt=prompt)).status == 500
            assert consumer.engine.core_dead

    play(scene())


def test_a_flat_list_of_blocks_is_as_good() -> None:
    async def scene() -> str:
        async with engines_here(2) as (producer, consumer):
            kv = await handoff(producer)
            return (await decode(consumer, {**kv, "remote_block_ids": kv["remote_block_ids"][0]})).text

    assert play(scene()) == right_text(6)


def test_a_decode_refused_as_too_long_frees_the_producer_soon() -> None:
    async def scene() -> None:
        async with engines_here(2, replace(QUICK, max_model_len=64)) as (producer, consumer):
            kv = await handoff(producer)
            assert (await decode(consumer, kv, 100)).status == 400
            await until(lambda: not producer.engine.pool.used)

    play(scene())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_everything(stream: bool) -> None:
    async def scene() -> None:
        async with engines_here(1, replace(QUICK, prefill_s=0.01, interval_s=5.0)) as (engine,):
            wire = await Wire.open(engine.url)
            body = {"prompt": PROMPT, "max_tokens": 9, "stream": stream}
            await wire.request("POST", "/v1/completions", body=body)
            await until(lambda: bool(engine.engine.stats.frames))
            assert engine.engine.running == 1
            wire.close()
            await until(lambda: not engine.engine.running)
            assert engine.engine.stats.aborted == 1
            assert engine.engine.pool.used == 0

    play(scene())


def test_sigterm_ends_streams_with_abort_and_cuts_plain_answers() -> None:
    async def scene() -> tuple[Answer, Answer]:
        async with engines_here(1, replace(QUICK, interval_s=0.02)) as (engine,):
            body = {"prompt": PROMPT, "max_tokens": 5000}
            asked = [
                asyncio.create_task(ask(engine.url, "/v1/completions", body={**body, "stream": stream}))
                for stream in (True, False)
            ]
            await until(lambda: engine.engine.stats.frames >= 6)
            engine.engine.shut_down()
            with pytest.raises(OSError):
                await ask(engine.url, "/health")
            stream, plain = [await task for task in asked]
            return stream, plain

    stream, plain = play(scene())
    assert stream.documents[-1]["choices"][0]["finish_reason"] == "abort"
    assert stream.events[-1] == "[DONE]"
    assert stream.complete
    choice = plain.json()["choices"][0]
    assert (plain.status, choice["finish_reason"]) == (200, "abort")
    assert choice["text"]
    assert right_text(5000).startswith(choice["text"])


def test_two_engines_started_together_tell_the_same_process_start() -> None:
    async def scene() -> list[str]:
        async with engines_here(2) as stands:
            metrics = [(await ask(stand.url, "/metrics")).body.decode() for stand in stands]
            return [line for text in metrics for line in text.split("\n") if line.startswith("process_start")]

    first, second = play(scene())
    assert abs(float(first.split()[1]) - float(second.split()[1])) <= 0.011
    assert len(first.split()[1]) == len("1.79597905083e+09")


def test_more_requests_than_seats_wait_their_turn() -> None:
    async def scene() -> None:
        async with engines_here(1, replace(QUICK, max_num_seqs=1, interval_s=0.01)) as (engine,):
            asked = [asyncio.create_task(decode(engine, None, 5)) for _ in range(3)]
            await until(lambda: engine.engine.running + engine.engine.waiting >= 3)
            assert (engine.engine.running, engine.engine.waiting) == (1, 2)
            assert [(await task).text for task in asked] == [right_text(5)] * 3

    play(scene())


def test_small_routes_answer_as_recorded() -> None:
    async def scene() -> None:
        async with engines_here(1, SimSettings(max_model_len=512)) as (engine,):
            assert (await ask(engine.url, "/version")).json() == {"version": "0.32.0"}
            health = await ask(engine.url, "/health")
            assert (health.status, health.body) == (200, b"")
            card = (await ask(engine.url, "/v1/models")).json()["data"][0]
            assert (card["id"], card["max_model_len"]) == ("simulated", 512)
            counted = (await ask(engine.url, "/tokenize", body={"prompt": PROMPT})).json()
            assert counted["count"] == len(counted["tokens"])
            assert (counted["max_model_len"], counted["token_strs"]) == (512, None)
            assert (await ask(engine.url, "/reset_prefix_cache", body=b"", method="POST")).status == 200
            assert (await ask(engine.url, "/nowhere")).status == 404
            wrong = await ask(engine.url, "/v1/completions", body={"model": "other", "prompt": "x"})
            assert (wrong.status, wrong.error["type"]) == (404, "NotFoundError")

    play(scene())


def test_metrics_are_prometheus_text_with_the_series_that_are_read() -> None:
    async def scene() -> str:
        async with engines_here(2) as (producer, consumer):
            await decode(consumer, await handoff(producer))
            return (await ask(consumer.url, "/metrics")).body.decode()

    families = list(text_string_to_metric_families(play(scene())))
    values = {sample.name: sample.value for family in families for sample in family.samples}
    assert values["vllm:num_requests_running"] == values["vllm:num_requests_waiting"] == 0
    assert values["vllm:kv_cache_usage_perc"] == values["vllm:nixl_num_failed_transfers_total"] == 0
    assert values["vllm:nixl_num_kv_expired_reqs_total"] == 0
    assert values["vllm:nixl_xfer_time_seconds_count"] == 1
    assert values["process_start_time_seconds"] > 1e9
