"""What a standby does to its engines before it claims the lease: probes them and opens connections."""

from __future__ import annotations

import asyncio

from narwhal.engine.client import LeanClient
from narwhal.errors import EngineError
from narwhal.model.engine import Leg, Role
from narwhal.model.settings import EngineSettings
from narwhal.policy.fleet import Fleet
from narwhal.ports import ControlClient, EngineCall

HEALTH = "/health"
_RID = "narwhal-warm"
_ROLE = {Leg.PREFILL: Role.PREFILL, Leg.DECODE: Role.DECODE}


async def warmed(
    client: LeanClient, probes: ControlClient, *, fleet: Fleet, settings: EngineSettings
) -> bool:
    """True: for each leg an engine of its role (or an unpinned one of the other) answers 200.

    The probes carry no epoch. One idle data connection is left to each engine that answers.
    """
    roles = fleet.roles()
    answers = await asyncio.gather(*(_answers(client, probes, iid=iid, settings=settings) for iid in roles))
    well = [iid for iid, answered in zip(roles, answers, strict=True) if answered]
    pinned = set(fleet.pinned())
    return all(any(roles[iid] is role or iid not in pinned for iid in well) for role in _ROLE.values())


async def _answers(client: LeanClient, probes: ControlClient, *, iid: str, settings: EngineSettings) -> bool:
    limit_s = min(settings.health_timeout_s, settings.connect_timeout_s)
    call = EngineCall(iid, "GET", HEALTH, Leg.PROBE, _RID, connect_s=limit_s)
    try:
        reply = await probes.get(iid, HEALTH, timeout_s=settings.health_timeout_s)
        await client.warm(call)
    except EngineError:
        return False
    return reply.status == 200
