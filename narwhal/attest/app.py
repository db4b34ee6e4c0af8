"""The sidecar's routes. Each request looks at the engine first: no answer is older than its request.

`GET /v1/attestation` the document, `GET /health` 200; both, and every other path, 503 while the sidecar
cannot vouch for the live engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from narwhal.attest.binding import Binding
from narwhal.errors import IdentityError
from narwhal.model.attestation import Attestation
from narwhal.model.identity import EngineIdentity

log = logging.getLogger("narwhal.attest")

DOCUMENT_PATH = "/v1/attestation"
HEALTH_PATH = "/health"


class AttestationApp:
    """`look` is asked for every request; `contract` and `sources` are those of the checked document."""

    def __init__(
        self,
        binding: Binding,
        look: Callable[[], Awaitable[EngineIdentity]],
        *,
        contract: Mapping[str, Any],
        sources: Mapping[str, str],
    ) -> None:
        self._binding = binding
        self._look = look
        self._contract = contract
        self._sources = sources
        self._refused = ""
        self._turn = asyncio.Lock()

    async def bind(self) -> EngineIdentity:
        """The process that is vouched for from now on. Raises IdentityError when it may not be."""
        refusal, seen = await self._seen()
        if seen is None:
            raise IdentityError(refusal)
        return seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal, seen = await self._seen()
        self._log(refusal)
        if seen is None:
            answer = _error(503, refusal, kind="identity_unavailable")
        elif scope["path"] not in (DOCUMENT_PATH, HEALTH_PATH):
            answer = _error(404, f"there is no {scope['path']} here", kind="invalid_request_error")
        elif scope["method"] not in ("GET", "HEAD"):
            answer = _error(405, f"{scope['method']} is not allowed here", kind="invalid_request_error")
        elif scope["path"] == HEALTH_PATH:
            answer = JSONResponse({"status": "ok"})
        else:
            answer = JSONResponse(Attestation(self._contract, self._sources, seen).document())
        await answer(scope, receive, send)

    async def _seen(self) -> tuple[str, EngineIdentity | None]:
        """Why not, and the process that is vouched for (None: none is). One look at a time: an older
        one that ends later would take the binding back to a process that is gone."""
        async with self._turn:
            try:
                seen = await self._look()
            except IdentityError as error:
                return str(error), None
            refusal = self._binding.judge(seen)
        return refusal, None if refusal else seen

    def _log(self, refusal: str) -> None:
        """Each change once; a router asks every few seconds."""
        if refusal == self._refused:
            return
        self._refused = refusal
        if refusal:
            log.warning("503 from now on: %s", refusal)
        elif (bound := self._binding.identity) is not None:
            log.warning("vouches again: %s", bound.words)


def _error(status: int, message: str, *, kind: str) -> JSONResponse:
    error = {"message": message, "type": kind, "param": None, "code": None}
    return JSONResponse({"error": error}, status)
