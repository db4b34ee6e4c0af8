"""Legs of our own on one engine, timed: what a router would send, without a client behind it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from narwhal.clock import Clock
from narwhal.errors import EngineRefused, IdentityError, StreamBroken
from narwhal.measure.listener import Listener
from narwhal.model.engine import Leg
from narwhal.model.engine_metrics import EngineLoad, read_kv_capacity, read_load
from narwhal.model.identity import METRICS_PATH, VERSION_PATH, read_version
from narwhal.model.model_list import read_models
from narwhal.model.request import Api, InferenceRequest
from narwhal.model.settings import EngineSettings, ServingSettings
from narwhal.ports import (
    ControlClient,
    Dialect,
    EngineCall,
    EngineClient,
    EngineReply,
    KvDescriptor,
    StreamCall,
)

HEALTH_PATH = "/health"
MODELS_PATH = "/v1/models"
TOKENIZE_PATH = "/tokenize"
RESET_PATH = "/reset_prefix_cache"
_NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class Speech:
    """A decode leg that ended well. `first_s` from dispatch to the first output; `interval_s` between
    tokens after that (None with fewer than two). `prompt_tokens`: the engine's count, if it told one."""

    text: str
    tokens: int
    prompt_tokens: int | None
    first_s: float
    interval_s: float | None


@dataclass(frozen=True, slots=True)
class Access:
    """How engines are reached, and by which clock. `model` is what they serve."""

    client: EngineClient
    control: ControlClient
    dialect: Dialect
    clock: Clock
    model: str
    engine: EngineSettings
    serving: ServingSettings


class Legs:
    """Every call raises the EngineErrors of its port, and EngineRefused for a status that is no answer.

    Each request has an ID of its own. None carries an epoch: a tool owns no fleet. `patience_s`: no silence
    of a leg is longer, and no leg twice as long, whatever the fleet file allows to a client's request.
    """

    def __init__(self, access: Access, *, patience_s: float = math.inf) -> None:
        self._access = access
        self._patience_s = patience_s
        # Not the loop's time, which has steps of a millisecond under uvloop.
        self.now = access.clock.now

    @property
    def may_count(self) -> bool:
        """Whether the fleet uses `/tokenize`."""
        return self._access.engine.tokenize

    async def once(self, iid: str, prompt: str) -> tuple[int, float]:
        """Prompt tokens (as the engine counts them) and seconds of one token, prefill and all."""
        body = {"model": self._access.model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        began = self.now()
        reply = await self._fetch(iid, Api.COMPLETIONS, body=json.dumps(body).encode())
        return _prompt_tokens(_document(reply, iid), iid), self.now() - began

    async def count(self, iid: str, prompt: str) -> int:
        """Prompt tokens by `POST /tokenize`."""
        body = self._access.dialect.tokenize_body(self.request(prompt, 1))
        reply = await self._fetch(iid, TOKENIZE_PATH, body=body)
        return self._access.dialect.read_tokenize(reply, iid)

    async def produce(self, iid: str, prompt: str, *, tokens: int) -> tuple[KvDescriptor, float]:
        """A KV handoff that may be sent to another engine, and the seconds it took."""
        body = self._access.dialect.prefill_body(self.request(prompt, tokens))
        began = self.now()
        reply = await self._fetch(iid, Api.COMPLETIONS, body=body, leg=Leg.PREFILL)
        return self._access.dialect.read_prefill(reply, iid), self.now() - began

    async def speak(self, iid: str, prompt: str, *, tokens: int, kv: KvDescriptor | None = None) -> Speech:
        """A whole answer of that many tokens; without `kv` the engine computes the prompt itself."""
        listener = Listener(iid, self.now)
        began = self.now()
        await self.listen(iid, self.request(prompt, tokens), kv=kv, listener=listener)
        return _speech(listener, began=began)

    async def listen(
        self, iid: str, request: InferenceRequest, *, kv: KvDescriptor | None, listener: Listener
    ) -> None:
        """Runs a decode leg into `listener`, to its end or until cancelled: the engine then aborts it."""
        leg = Leg.PROBE if kv is None else Leg.DECODE
        call = self._call(iid, request.api, leg=leg, body=self._access.dialect.decode_body(request, kv))
        engine = self._access.engine
        first_s = engine.first_token_timeout_s if kv is not None else self._access.serving.prefill_timeout_s
        silence_s = engine.decode_read_timeout_s
        if math.isfinite(self._patience_s):
            first_s, call.total_s = min(first_s, self._patience_s), 2 * self._patience_s
            silence_s = min(silence_s or self._patience_s, self._patience_s)
        ask = StreamCall(call, first_s, silence_s, decode_events=listener.reads_text)
        await self._access.client.stream(ask, listener)
        if listener.finish_reason is None:
            raise StreamBroken("the stream ended without a finish reason", iid=iid, kind="early_end")

    async def forget(self, iid: str) -> bool:
        """Empties the engine's prefix cache. False: it has no such route (as a rule in production)."""
        reply = await self._access.control.post(iid, RESET_PATH, body=b"", timeout_s=self._control_s)
        if reply.status == _NOT_FOUND:
            return False
        _check(reply, iid)
        return True

    async def check_health(self, iid: str) -> None:
        """Raises EngineRefused for any status but 200."""
        await self._get(iid, HEALTH_PATH)

    async def version(self, iid: str) -> str:
        """The engine's vLLM version. Raises IdentityError where it tells none."""
        return read_version(await self._get(iid, VERSION_PATH))

    async def models(self, iid: str) -> Mapping[str, int | None]:
        """Model ID to its longest context in tokens, None where that is not told; may be empty."""
        return read_models(await self._get(iid, MODELS_PATH))

    async def load(self, iid: str) -> EngineLoad:
        """Raises IdentityError where the engine's metrics tell nothing of its work."""
        load = read_load(await self._get(iid, METRICS_PATH))
        if load is None:
            raise IdentityError(f"{METRICS_PATH} tells no running and waiting requests")
        return load

    async def kv_capacity(self, iid: str) -> int | None:
        return read_kv_capacity(await self._get(iid, METRICS_PATH))

    def request(self, prompt: str, tokens: int) -> InferenceRequest:
        """Greedy, and to its last token whatever the model says."""
        fields: dict[str, Any] = {
            "model": self._access.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return InferenceRequest(
            api=Api.COMPLETIONS,
            rid=_new_rid(),
            client_rid=None,
            fields=fields,
            body=json.dumps(fields).encode(),
            stream=True,
            include_usage=True,
            return_token_ids=False,
            arrived_at=0.0,
            arrived_wall=0.0,
            max_tokens=tokens,
        )

    @property
    def _control_s(self) -> float:
        return self._access.engine.health_timeout_s

    async def _get(self, iid: str, path: str) -> bytes:
        reply = await self._access.control.get(iid, path, timeout_s=self._control_s)
        return _check(reply, iid).body

    async def _fetch(self, iid: str, path: str, *, body: bytes, leg: Leg = Leg.PROBE) -> EngineReply:
        call = self._call(iid, path, leg=leg, body=body)
        call.total_s = min(self._access.serving.prefill_timeout_s, self._patience_s)
        return await self._access.client.fetch(call)

    def _call(self, iid: str, path: str, *, leg: Leg, body: bytes) -> EngineCall:
        engine = self._access.engine
        return EngineCall(
            iid,
            "POST",
            str(path),
            leg,
            _new_rid(),
            body,
            connect_s=engine.connect_timeout_s,
            pool_s=engine.pool_timeout_s,
        )


def _new_rid() -> str:
    return os.urandom(16).hex()


def _check(reply: EngineReply, iid: str) -> EngineReply:
    if reply.status != 200:
        raise EngineRefused(f"status {reply.status}", iid=iid, status=reply.status, error=_error(reply.body))
    return reply


def _error(body: bytes) -> dict[str, Any]:
    """The engine's error object; empty where there is none."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _document(reply: EngineReply, iid: str) -> dict[str, Any]:
    try:
        document = json.loads(_check(reply, iid).body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise StreamBroken("a 200 that is no JSON object", iid=iid, kind="malformed")
    return document


def _prompt_tokens(document: dict[str, Any], iid: str) -> int:
    usage = document.get("usage")
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise StreamBroken("an answer without usage.prompt_tokens", iid=iid, kind="malformed")
    return tokens


def _speech(listener: Listener, *, began: float) -> Speech:
    ticks = listener.ticks
    span_s = ticks[-1] - ticks[0]
    tokens = listener.completion_tokens or len(ticks)
    return Speech(
        text=listener.text,
        tokens=tokens,
        prompt_tokens=listener.prompt_tokens,
        first_s=ticks[0] - began,
        interval_s=span_s / (tokens - 1) if tokens > 1 else None,
    )
