"""Identity of engines: `/version` and `/metrics` of the engine itself, the document of its sidecar.

The engine is asked on the control pool. A sidecar has another address and must never see the engines' key,
so the sidecars are asked through a second, equally small pool that has none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from narwhal.engine.control import LeanControl
from narwhal.errors import AttestationInvalid, IdentityError
from narwhal.model.attestation import Attestation, read_attestation
from narwhal.model.engine import EngineSpec
from narwhal.model.identity import (
    METRICS_PATH,
    VERSION_PATH,
    EngineIdentity,
    read_process_start,
    read_version,
)
from narwhal.model.settings import EngineSettings
from narwhal.ports import ControlClient

_SHOWN_CHARS = 200


class EngineIdentities:
    """`ports.Identities`. `control` reaches the engines, `sidecars` their sidecars; closes the latter."""

    def __init__(
        self, engines: Sequence[EngineSpec], control: ControlClient, *, sidecars: ControlClient
    ) -> None:
        self._control = control
        self._sidecars = sidecars
        # The URL is the document's own; only an empty path has to be written out.
        self._paths = {
            spec.iid: "" if urlsplit(spec.attestation_url).path else "/"
            for spec in engines
            if spec.attestation_url
        }

    async def identity(self, iid: str, *, timeout_s: float) -> EngineIdentity:
        """The start is read last: while it is the same, so is the process whose version was read."""
        version = read_version(await self._answer(iid, VERSION_PATH, timeout_s=timeout_s))
        start = read_process_start(await self._answer(iid, METRICS_PATH, timeout_s=timeout_s))
        return EngineIdentity(version, start)

    async def attestation(self, iid: str, *, timeout_s: float) -> Attestation:
        reply = await self._sidecars.get(iid, self._paths[iid], timeout_s=timeout_s)
        if reply.status != 200:
            raise AttestationInvalid(f"the sidecar answers {reply.status}{_reason(reply.body)}")
        return read_attestation(reply.body)

    async def aclose(self) -> None:
        await self._sidecars.aclose()

    async def _answer(self, iid: str, path: str, *, timeout_s: float) -> bytes:
        reply = await self._control.get(iid, path, timeout_s=timeout_s)
        if reply.status != 200:
            raise IdentityError(f"{path} answers {reply.status}")
        return reply.body


def sidecar_control(engines: Sequence[EngineSpec], settings: EngineSettings) -> LeanControl:
    """The pool that reaches the sidecars of engines that have one. Make it on the loop that it serves."""
    attested = [replace(spec, url=spec.attestation_url) for spec in engines if spec.attestation_url]
    return LeanControl(
        attested,
        connections=settings.control_connections,
        connect_timeout_s=settings.connect_timeout_s,
    )


def _reason(body: bytes) -> str:
    """The message of an error envelope; "" where there is none."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return ""
    return f": {message[:_SHOWN_CHARS]}" if isinstance(message, str) and message.isprintable() else ""
