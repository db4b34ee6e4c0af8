"""The engines of a fleet as the tools reach them: the same clients, the same key, no epoch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from narwhal.clock import SystemClock
from narwhal.engine.attestation import EngineIdentities, sidecar_control
from narwhal.engine.client import ClientSettings, LeanClient
from narwhal.engine.control import LeanControl
from narwhal.engine.dialect import make_dialect
from narwhal.measure.legs import Access
from narwhal.model.settings import FleetConfig
from narwhal.ports import Identities


def engine_auth(api_key: str) -> str:
    """The word of `admission.engine_auth` and of a profile store."""
    return "engine-credential" if api_key else "boundary"


@asynccontextmanager
async def engine_access(
    config: FleetConfig, *, api_key: str, connections: int = 0
) -> AsyncIterator[tuple[Access, Identities]]:
    """Open clients on the running loop. `connections`: at least as many streams at once."""
    engine, serving = config.engine, config.serving
    limits = ClientSettings(max(serving.max_connections, connections), serving.max_response_bytes, api_key)
    client = LeanClient(config.engines, limits)
    control = LeanControl(
        config.engines,
        connections=engine.control_connections,
        connect_timeout_s=engine.connect_timeout_s,
        api_key=api_key,
    )
    sidecars = sidecar_control(config.engines, engine)
    identities = EngineIdentities(config.engines, control, sidecars=sidecars)
    try:
        dialect = make_dialect(engine.dialect, engine.connector)
        yield Access(client, control, dialect, SystemClock(), config.model, engine, serving), identities
    finally:
        await identities.aclose()
        await control.aclose()
        await client.aclose()
