"""Asks engines and their sidecars which process they are, and looks at both: is it what the fleet wants."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from narwhal.errors import AttestationInvalid, EngineError, IdentityError
from narwhal.model.attestation import Attestation
from narwhal.model.effect import ProbeWanted
from narwhal.model.evidence import Identified, IdentityOutcome
from narwhal.model.identity import EngineIdentity
from narwhal.monitor.probe_legs import ProbeLegs, is_ours, we_are_cancelled
from narwhal.policy.identity import unlike
from narwhal.ports import Identities


class Questions:
    """Whoever wants to know asks here. Raises IdentityError and EngineError; a stale epoch has been told to
    the gate by then (`ProbeLegs.told`). `timeout_s` bounds each question."""

    def __init__(self, identities: Identities, legs: ProbeLegs, *, timeout_s: float) -> None:
        self._identities = identities
        self._legs = legs
        self._timeout_s = timeout_s

    async def live(self, iid: str) -> EngineIdentity:
        """What the engine itself tells."""
        return await self._legs.told(iid, self._identities.identity(iid, timeout_s=self._timeout_s))

    async def together(self, iid: str) -> tuple[Attestation, EngineIdentity]:
        """The attestation first: only a later look at the engine proves it."""
        try:
            told = await self._legs.told(iid, self._identities.attestation(iid, timeout_s=self._timeout_s))
        except EngineError as error:
            if is_ours(error):
                raise
            raise AttestationInvalid(f"the sidecar gives no answer ({error})") from error
        return told, await self.live(iid)


class CheckedProcesses:
    """Which process the readmission checks of an engine are made on. They take their time, and a supervisor
    may start another one meanwhile: the last check asks again."""

    def __init__(self, ask: Questions) -> None:
        self._ask = ask
        self._found: dict[str, EngineIdentity] = {}

    def begin(self, iid: str) -> None:
        """Nothing is known of the process that answers now."""
        self._found.pop(iid, None)

    def found(self, iid: str, live: EngineIdentity) -> None:
        """A check saw this one. What the first check saw stands."""
        self._found.setdefault(iid, live)

    def start(self, iid: str) -> float | None:
        """When it started, Unix seconds; None: no check has seen it."""
        live = self._found.get(iid)
        return None if live is None else live.process_start

    async def changed(self, iid: str) -> str:
        """Which other process answers now, "" if it is the same or none was seen. Raises IdentityError and
        EngineError."""
        before = self._found.get(iid)
        if before is None:
            return ""
        live = await self._ask.live(iid)
        return "" if live.started_with(before) else f"{live.words}, the checks began on {before.words}"


@dataclass(frozen=True, slots=True)
class Seen:
    """`unlike`: one sentence for each thing that does not fit, empty where all does."""

    live: EngineIdentity
    unlike: tuple[str, ...]


class IdentityLooks:
    """What the contract wants is compared with what is there."""

    def __init__(self, ask: Questions, *, contract: Mapping[str, Any]) -> None:
        self._ask = ask
        self._contract = contract

    async def see(self, iid: str) -> Seen:
        """Raises IdentityError and EngineError."""
        told, live = await self._ask.together(iid)
        return Seen(live, unlike(self._contract, told, live=live))

    async def _start(self, iid: str) -> float | None:
        """Of an engine whose sidecar is silent: which process is it? None: nobody knows."""
        try:
            return (await self._ask.live(iid)).process_start
        except (EngineError, IdentityError):
            return None

    async def look(self, probe: ProbeWanted) -> Identified:
        """As evidence. Never raises for what an engine or a sidecar does."""
        iid, number = probe.iid, probe.number
        try:
            seen = await self.see(iid)
        except (EngineError, IdentityError) as error:
            if isinstance(error, EngineError) and is_ours(error):
                return Identified(iid, IdentityOutcome.INCONCLUSIVE, detail=str(error), number=number)
            return Identified(iid, IdentityOutcome.SILENT, await self._start(iid), str(error), number)
        except asyncio.CancelledError:
            if we_are_cancelled():
                raise
            return Identified(iid, IdentityOutcome.INCONCLUSIVE, detail="cancelled", number=number)
        outcome = IdentityOutcome.UNLIKE if seen.unlike else IdentityOutcome.LIKE
        return Identified(iid, outcome, seen.live.process_start, "; ".join(seen.unlike), number)
