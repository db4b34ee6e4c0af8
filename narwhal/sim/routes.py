"""The HTTP routes of one simulated engine: the serving port and the side channel.

`/sim/*` answers on both: a fault may close the serving port, and the side channel is then the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import orjson

from narwhal import fence
from narwhal.sim.engine import Later, SimEngine
from narwhal.sim.faults import Fault, FaultError, parse_faults
from narwhal.sim.generation import Generation
from narwhal.sim.handoff import read_descriptor
from narwhal.sim.http import Exchange
from narwhal.sim.metrics import metrics_text
from narwhal.sim.packets import packets_for
from narwhal.sim.peers import PULL_PATH, read_pull
from narwhal.sim.request import (
    Refusal,
    error_document,
    read_generate,
    read_json,
    read_prompt,
    unknown_model,
)

Route = Callable[[Exchange], None]


class Routes:
    """What one engine answers. `serving` and `side` handle the exchanges of the two listeners."""

    def __init__(self, engine: SimEngine) -> None:
        self._engine = engine
        completions, chat = partial(self._generate, chat=False), partial(self._generate, chat=True)
        self._serving: dict[tuple[str, str], tuple[str, Route]] = {
            ("GET", "/health"): ("health", self._health),
            ("GET", "/version"): ("version", self._version),
            ("GET", "/metrics"): ("metrics", self._metrics),
            ("GET", "/v1/models"): ("models", self._models),
            ("POST", "/tokenize"): ("tokenize", self._tokenize),
            ("POST", "/reset_prefix_cache"): ("reset", self._reset_prefix_cache),
            ("POST", "/v1/completions"): ("", completions),
            ("POST", "/v1/chat/completions"): ("", chat),
        }
        self._sim: dict[tuple[str, str], Callable[[Exchange], None]] = {
            ("GET", "/sim/stats"): self._stats,
            ("POST", "/sim/reset"): self._reset,
            ("GET", "/sim/faults"): self._list_faults,
            ("POST", "/sim/faults"): self._order_faults,
            ("DELETE", "/sim/faults"): self._clear_faults,
        }

    def serving(self, exchange: Exchange) -> None:
        """The serving port."""
        request = exchange.request
        sim = self._sim.get((request.method, request.path))
        if sim is not None:
            sim(exchange)
            return
        if self._is_fenced_off(exchange):
            return
        route = self._serving.get((request.method, request.path))
        if route is None:
            self._nowhere(exchange)
            return
        leg = route[0] or _leg(exchange)
        self._engine.stats.saw(leg, request, at=self._engine.wheel.now())
        exchange.faults = self._engine.faults.take(leg, request.body)
        self._behave(exchange, route[1])

    def side(self, exchange: Exchange) -> None:
        """The side channel: pulls of other processes, and `/sim/*`."""
        request = exchange.request
        sim = self._sim.get((request.method, request.path))
        if sim is not None:
            sim(exchange)
        elif (request.method, request.path) == ("POST", PULL_PATH) and not self._engine.core_dead:
            self._pull(exchange)
        else:
            exchange.drop()

    def _is_fenced_off(self, exchange: Exchange) -> bool:
        """As the middleware of a real engine: before anything else of it sees the request."""
        named = exchange.request.headers
        value, leg = (named.get(name.decode(), "") for name in (fence.EPOCH_HEADER, fence.LEG_HEADER))
        epoch = self._engine.epochs.superseded_by(value.encode("latin-1"), leg.encode("latin-1"))
        if epoch is None:
            return False
        self._engine.stats.fenced[leg] += 1
        exchange.reply(409, fence.refusal(epoch))
        return True

    # --- faults before the work -------------------------------------------------------------------

    def _behave(self, exchange: Exchange, route: Route) -> None:
        """Follow the faults that come before any work, then answer."""
        faults = exchange.faults
        if "hang" in faults:
            exchange.on_gone = self._gave_up
            return
        exchange.packets = packets_for(faults, exchange.send_raw)
        if "slow" in faults:
            later = Later(lambda: self._answer(exchange, route))
            exchange.on_gone = lambda: self._gave_up(later)
            self._engine.wheel.add(later, self._engine.wheel.now() + faults["slow"]["seconds"])
            return
        self._answer(exchange, route)

    def _gave_up(self, later: Later | None = None) -> None:
        self._engine.stats.aborted += 1
        if later is not None:
            later.cancel()

    def _answer(self, exchange: Exchange, route: Route) -> None:
        exchange.on_gone, faults = None, exchange.faults
        if "rst" in faults and faults["rst"]["after"] == 0:
            exchange.reset()
            return
        try:
            self._check_key(exchange)
            if "status" in faults:
                self._refuse(exchange, faults["status"])
            else:
                route(exchange)
        except Refusal as refusal:
            self._engine.stats.refused += 1
            exchange.reply_json(refusal.status, refusal.document())

    def _refuse(self, exchange: Exchange, fault: Fault) -> None:
        self._engine.stats.refused += 1
        headers = [] if fault["retry_after"] is None else [("retry-after", str(fault["retry_after"]))]
        status = fault["status"]
        kind = "BadRequestError" if status < 500 else "InternalServerError"
        exchange.reply_json(status, error_document(fault["message"], kind, code=status), headers=headers)

    def _check_key(self, exchange: Exchange) -> None:
        key, request = self._engine.settings.api_key, exchange.request
        if key and request.path.startswith("/v1") and request.headers.get("authorization") != f"Bearer {key}":
            raise Refusal(401, "Unauthorized", type="AuthenticationError")

    def _nowhere(self, exchange: Exchange) -> None:
        exchange.reply_json(404, {"detail": "Not Found"})

    # --- serving routes -----------------------------------------------------------------------------

    def _health(self, exchange: Exchange) -> None:
        exchange.reply(503 if self._engine.healthy_no_more else 200, b"")

    def _version(self, exchange: Exchange) -> None:
        exchange.reply_json(200, {"version": self._engine.settings.version})

    def _metrics(self, exchange: Exchange) -> None:
        faults = exchange.faults
        shift = faults["process_start"]["shift"] if "process_start" in faults else 0.0
        text = metrics_text(self._engine, process_start=self._engine.process_start + shift)
        plain = ("content-type", "text/plain; version=0.0.4; charset=utf-8")
        exchange.reply(200, text.encode(), headers=[plain])

    def _models(self, exchange: Exchange) -> None:
        settings = self._engine.settings
        wrong = exchange.faults.get("wrong_model")
        name = settings.model if wrong is None else wrong["model"]
        model: dict[str, Any] = {
            "id": name,
            "object": "model",
            "created": int(self._engine.process_start),
            "owned_by": "vllm",
            "root": name,
            "parent": None,
            "max_model_len": settings.max_model_len,
            "permission": [],
        }
        exchange.reply_json(200, {"object": "list", "data": [model]})

    def _tokenize(self, exchange: Exchange) -> None:
        fields = read_json(exchange.request.body)
        prompt = read_prompt(fields, chat="messages" in fields)
        document = {
            "count": prompt.count,
            "max_model_len": self._engine.settings.max_model_len,
            "tokens": prompt.ids(),
            "token_strs": None,
        }
        exchange.reply_json(200, document)

    def _reset_prefix_cache(self, exchange: Exchange) -> None:
        self._engine.reset_prefix_cache()
        exchange.reply(200, b"")

    def _generate(self, exchange: Exchange, *, chat: bool) -> None:
        fields = read_json(exchange.request.body)
        if "wrong_model" in exchange.faults:
            raise unknown_model(fields.get("model"))
        try:
            request = read_generate(fields, self._engine.settings, chat=chat)
        except Refusal:
            self._free_refused(fields)
            raise
        self._engine.submit(Generation(self._engine, exchange, request=request))

    def _free_refused(self, fields: Mapping[str, Any]) -> None:
        params = fields.get("kv_transfer_params")
        kv = read_descriptor(params) if isinstance(params, dict) and params.get("do_remote_prefill") else None
        if kv is not None:
            self._engine.free_refused(kv)

    # --- side channel and orders ----------------------------------------------------------------------

    def _pull(self, exchange: Exchange) -> None:
        try:
            kv, mark = read_pull(orjson.loads(exchange.request.body), self._engine.side)
        except ValueError as error:
            exchange.reply_json(400, {"error": str(error)})
            return
        exchange.reply_json(200, {"pull": self._engine.serve_pull(kv, mark).value})

    def _stats(self, exchange: Exchange) -> None:
        engine, now = self._engine, self._engine.wheel.now()
        held = [
            {"request_id": entry.request_id, "blocks": len(entry.blocks), "age_s": now - entry.held_at}
            for entry in engine.ledger.held()
        ]
        document = {
            "engine": engine.settings.name,
            "engine_id": engine.side.engine_id,
            "process_start": engine.process_start,
            "running": engine.running,
            "waiting": engine.waiting,
            "held": len(held),
            "handoffs": held,
            "pulled": engine.ledger.pulled,
            "expired": engine.ledger.expired,
            "blocks_used": engine.pool.used,
            "blocks_total": engine.pool.total,
            "epochs": engine.epochs.highest,
            **engine.stats.document(),
            "faults": engine.faults.documents(),
        }
        if parse_qs(exchange.request.query).get("requests") == ["0"]:
            del document["requests"]
        exchange.reply_json(200, document)

    def _reset(self, exchange: Exchange) -> None:
        self._engine.stats.reset()
        self._engine.recover()
        exchange.reply_json(200, {"faults": []})

    def _list_faults(self, exchange: Exchange) -> None:
        exchange.reply_json(200, {"faults": self._engine.faults.documents()})

    def _clear_faults(self, exchange: Exchange) -> None:
        self._engine.recover()
        self._list_faults(exchange)

    def _order_faults(self, exchange: Exchange) -> None:
        try:
            faults = parse_faults(orjson.loads(exchange.request.body))
        except orjson.JSONDecodeError as error:
            exchange.reply_json(400, error_document(f"not JSON: {error}", "BadRequestError", code=400))
            return
        except FaultError as error:
            exchange.reply_json(400, error_document(str(error), "BadRequestError", code=400))
            return
        for fault in faults:
            self._engine.order(fault)
        self._list_faults(exchange)


def _leg(exchange: Exchange) -> str:
    """Which leg a generating request is: as its header says, else by what it asks of the KV connector."""
    named = exchange.request.headers.get("x-narwhal-leg", "")
    if named in ("prefill", "decode", "probe"):
        return named
    return "prefill" if b'"do_remote_decode": true' in _spaced(exchange.request.body) else "decode"


def _spaced(body: bytes) -> bytes:
    return body.replace(b'"do_remote_decode":true', b'"do_remote_decode": true')
