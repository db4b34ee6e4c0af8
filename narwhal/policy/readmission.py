"""What an engine owes before it takes requests again (failures.md section 7). Pure.

| check | owed | passes when |
| --- | --- | --- |
| health | always | 200 in time |
| attestation | contracted fleets | the sidecar tells of the live process and equals the contract |
| model | always | the engine lists the configured model |
| process | planned maintenance | the process is newer than the one in the drain record |
| generation | always | a direct completion comes to its clean end |
| kv_transfer | with a live peer | a transfer in each direction that its role permits |
| final_health | always | 200 in time |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from narwhal.model.engine import Role

HEALTH = "health"
ATTESTATION = "attestation"
MODEL = "model"
PROCESS = "process"
GENERATION = "generation"
KV_TRANSFER = "kv_transfer"
FINAL_HEALTH = "final_health"
ORDER = (HEALTH, ATTESTATION, MODEL, PROCESS, GENERATION, KV_TRANSFER, FINAL_HEALTH)

PASSED = "passed"
FAILED = "failed"
SKIPPED = "skipped"
"""Outcomes of a check, as documents show them."""

MOST_PEERS = 4
"""Live peers that a transfer is tried with, in each direction."""


@dataclass(frozen=True, slots=True)
class TransferPeers:
    """With whom an engine exchanges KV to prove itself; both empty where nobody lives."""

    produces_to: tuple[str, ...] = ()
    consumes_from: tuple[str, ...] = ()


def transfer_peers(
    iid: str, roles: Mapping[str, Role], *, pinned: Set[str], live: Iterable[str]
) -> TransferPeers:
    """A pinned engine has one direction, an unpinned one both. `live`: engines that take requests now.

    A peer is an engine whose role is the other leg; where none of them lives, one that may take that leg.
    """
    others = [one for one in live if one != iid]
    permitted = {roles[iid]} if iid in pinned else set(Role)

    def able(role: Role) -> tuple[str, ...]:
        of_role = [one for one in others if roles[one] is role]
        unpinned = [one for one in others if roles[one] is not role and one not in pinned]
        return tuple((of_role or unpinned)[:MOST_PEERS])

    return TransferPeers(
        produces_to=able(Role.DECODE) if Role.PREFILL in permitted else (),
        consumes_from=able(Role.PREFILL) if Role.DECODE in permitted else (),
    )


def ring(members: Iterable[str], roles: Mapping[str, Role], *, pinned: Set[str]) -> list[tuple[str, str]]:
    """Producer and consumer of each transfer that proves these engines among themselves.

    Each hands its KV to the next one that may take it, round the ring, so that everyone produces and consumes
    as roles and pins permit; whoever has nobody for it is in no pair. Each pair once.
    """
    order = sorted(members)

    def may(iid: str, role: Role) -> bool:
        return iid not in pinned or roles[iid] is role

    def behind(iid: str) -> list[str]:
        place = order.index(iid)
        return [*order[place + 1 :], *order[:place]]

    pairs: list[tuple[str, str]] = []
    for producer in (iid for iid in order if may(iid, Role.PREFILL)):
        pairs += [(producer, iid) for iid in behind(producer) if may(iid, Role.DECODE)][:1]
    fed = {consumer for _, consumer in pairs}
    for consumer in (iid for iid in order if may(iid, Role.DECODE) and iid not in fed):
        pairs += [(iid, consumer) for iid in reversed(behind(consumer)) if may(iid, Role.PREFILL)][:1]
    return pairs
