"""Identity of engines: `/version` and `/metrics` of the engine itself, the document of its sidecar.

The engine is asked on the control pool. A sidecar has another address and must never see the engines' key,
so the sidecars have a lean client of their own, as small as the control pool.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from narwhal.engine.client import ClientSettings, LeanClient
from narwhal.errors import AttestationInvalid, IdentityError
from narwhal.model.attestation import Attestation, read_attestation
from narwhal.model.engine import EngineSpec, Leg
from narwhal.model.identity import (
    METRICS_PATH,
    VERSION_PATH,
    EngineIdentity,
    read_process_start,
    read_version,
)
from narwhal.model.settings import EngineSettings
from narwhal.ports import ControlClient, EngineCall

_DOCUMENT_LIMIT = 1 << 20
_RID = "narwhal-attestation"
_SHOWN_CHARS = 200


class EngineIdentities:
    """`ports.Identities`. Make it on the loop that it serves; `control` stays the caller's to close."""

    def __init__(
        self, engines: Sequence[EngineSpec], control: ControlClient, *, settings: EngineSettings
    ) -> None:
        attested = [replace(spec, url=spec.attestation_url) for spec in engines if spec.attestation_url]
        self._control = control
        self._connect_s = settings.connect_timeout_s
        self._paths = {spec.iid: "" if urlsplit(spec.url).path else "/" for spec in attested}
        self._sidecars = LeanClient(attested, ClientSettings(settings.control_connections, _DOCUMENT_LIMIT))

    async def identity(self, iid: str, *, timeout_s: float) -> EngineIdentity:
        """The start is read last: while it is the same, so is the process whose version was read."""
        version = read_version(await self._answer(iid, VERSION_PATH, timeout_s=timeout_s))
        start = read_process_start(await self._answer(iid, METRICS_PATH, timeout_s=timeout_s))
        return EngineIdentity(version, start)

    async def attestation(self, iid: str, *, timeout_s: float) -> Attestation:
        call = EngineCall(
            iid,
            "GET",
            self._paths[iid],
            Leg.PROBE,
            _RID,
            connect_s=min(self._connect_s, timeout_s),
            pool_s=timeout_s,
            total_s=timeout_s,
        )
        reply = await self._sidecars.fetch(call)
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


def _reason(body: bytes) -> str:
    """The message of an error envelope; "" where there is none."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return ""
    return f": {message[:_SHOWN_CHARS]}" if isinstance(message, str) and message.isprintable() else ""
