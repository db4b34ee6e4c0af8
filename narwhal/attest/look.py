"""One look at the engine beside us: its version and process start."""

from __future__ import annotations

import asyncio
import ssl
import uuid
from types import TracebackType
from typing import Self

import httpx

from narwhal.errors import IdentityError
from narwhal.model.identity import (
    METRICS_PATH,
    VERSION_PATH,
    EngineIdentity,
    read_process_start,
    read_version,
)

LARGEST_ANSWER = 8 << 20
"""Bytes; an engine's /metrics are some hundred thousand."""


class EngineLook:
    """Asks the engine at `base`. `api_key` "": no Authorization. Proxy variables are not looked at."""

    def __init__(self, base: str, *, timeout_s: float, api_key: str = "") -> None:
        self._base = base
        self._timeout_s = timeout_s
        bearer = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.AsyncClient(
            headers={**bearer, "x-narwhal-leg": "probe"},
            timeout=timeout_s,
            # vLLM closes idle connections after 5 s: one that is kept could be gone under a request, and
            # the engine would look away.
            limits=httpx.Limits(max_keepalive_connections=0),
            # The system's (or SSL_CERT_FILE's) CAs, as for a router; httpx brings its own.
            verify=ssl.create_default_context() if base.startswith("https:") else False,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def identity(self) -> EngineIdentity:
        """Within `timeout_s` in all. Raises IdentityError with one sentence, without the address.

        The start is read last: while it is the same, so is the process whose version was read.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                version = read_version(await self._answer(VERSION_PATH))
                start = read_process_start(await self._answer(METRICS_PATH))
        except TimeoutError:
            raise IdentityError(f"the engine gave no answer in {self._timeout_s:g} s") from None
        except (httpx.HTTPError, OSError) as error:
            raise IdentityError(f"the engine gives no answer ({type(error).__name__})") from error
        return EngineIdentity(version, start)

    async def _answer(self, path: str) -> bytes:
        # A request of its own each time: an ID tells one apart in the engine's log.
        headers = {"x-request-id": uuid.uuid4().hex}
        body = bytearray()
        async with self._client.stream("GET", self._base + path, headers=headers) as answer:
            if answer.status_code != 200:
                raise IdentityError(f"the engine answers {answer.status_code} on {path}")
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > LARGEST_ANSWER:
                    raise IdentityError(f"the engine's answer on {path} is over {LARGEST_ANSWER} bytes")
        return bytes(body)
