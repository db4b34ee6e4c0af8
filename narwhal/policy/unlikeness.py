"""What a standby differs in from the owner, in sentences, and whether that forbids a takeover. Pure.

| differs | sentence | ready to take over |
| --- | --- | --- |
| the model: the owner serves another fleet | yes | no, and it does not compete at all |
| schema version of the handoff | yes | no |
| engine set or engine contract, where a contract is set | yes | no |
| the same without a contract | yes | yes |
| version, configuration, voters of fail-safe mode | yes | yes: rolling upgrades go on |
| the mirror is older than allowed | yes | yes: it never forbids acquiring |
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from narwhal.model.handoff import SCHEMA_VERSION

_SHOWN = 4
"""Engines named in one sentence."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """What the routers of one cluster should have in common. "" and 0: not told, and not compared.

    `contract_digest` is "" without an engine contract, `engines` the configured set.
    """

    version: str = ""
    config_digest: str = ""
    contract_digest: str = ""
    schema_version: int = SCHEMA_VERSION
    engines: frozenset[str] = frozenset()
    voters: str = ""
    """See `voters_digest`."""
    section_digests: Mapping[str, str] = field(default_factory=dict)
    """Section of the fleet file -> its digest."""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Unlikeness:
    """`sentences` may be empty. `forbids`: what the owner left could not be taken over by us.
    `another_fleet`: clients of the owner would not be served here."""

    sentences: tuple[str, ...] = ()
    forbids: bool = False
    another_fleet: bool = False


def voters_digest(voters: Iterable[str]) -> str:
    """What routers compare: equal for the same voters in any order, "off" without fail-safe mode."""
    listed = ",".join(sorted(voters))
    return hashlib.sha256(listed.encode()).hexdigest()[:16] if listed else "off"


def compare(mine: Likeness, owner: Likeness) -> Unlikeness:
    """`owner` as far as it is known: fields that it does not tell are no difference."""
    model = _model(mine.model, owner.model)
    fatal = model + _schema(mine, owner)
    grave = _contract(mine, owner) + _engines(mine.engines, owner.engines)
    light = _version(mine, owner) + _config(mine, owner) + _voters(mine, owner)
    contracted = bool(mine.contract_digest or owner.contract_digest)
    forbids = bool(fatal or (contracted and grave))
    return Unlikeness(fatal + grave + light, forbids, another_fleet=bool(model))


def old_mirror(age_s: float | None, max_age_s: float) -> tuple[str, ...]:
    """The sentence about a mirror that was not read to its end for too long."""
    if age_s is None or age_s <= max_age_s:
        return ()
    return (f"the mirror is {age_s:.0f} s old",)


def _model(mine: str, owner: str) -> tuple[str, ...]:
    if not owner or mine == owner:
        return ()
    return (f'it is another fleet\'s: this router is for the model "{mine}", the owner serves "{owner}"',)


def _schema(mine: Likeness, owner: Likeness) -> tuple[str, ...]:
    if owner.schema_version in (0, mine.schema_version):
        return ()
    return (f"handoff schema version {mine.schema_version}, the owner writes {owner.schema_version}",)


def _contract(mine: Likeness, owner: Likeness) -> tuple[str, ...]:
    if not owner.config_digest or mine.contract_digest == owner.contract_digest:
        return ()
    return ("the engine contract differs from the owner's",)


def _engines(mine: Set[str], owner: Set[str]) -> tuple[str, ...]:
    if not owner or mine == owner:
        return ()
    more, less = sorted(mine - owner), sorted(owner - mine)
    parts = [f"only here: {_named(more)}"] * bool(more) + [f"only there: {_named(less)}"] * bool(less)
    return (f"the engine set differs from the owner's ({'; '.join(parts)})",)


def _named(engines: list[str]) -> str:
    return ", ".join(engines[:_SHOWN]) + (" ..." if len(engines) > _SHOWN else "")


def _version(mine: Likeness, owner: Likeness) -> tuple[str, ...]:
    if not owner.version or mine.version == owner.version:
        return ()
    return (f"version {mine.version}, the owner's is {owner.version}",)


def _config(mine: Likeness, owner: Likeness) -> tuple[str, ...]:
    if not owner.config_digest or mine.config_digest == owner.config_digest:
        return ()
    ours, theirs = mine.config_digest[:8], owner.config_digest[:8]
    where = _sections(mine.section_digests, owner.section_digests)
    return (f"the configuration differs from the owner's{where} (digest {ours}, the owner's {theirs})",)


def _sections(mine: Mapping[str, str], owner: Mapping[str, str]) -> str:
    """An owner that does not tell its sections has an older version."""
    unlike = [name for name in sorted({*mine, *owner}) if mine.get(name) != owner.get(name)]
    return f" in {', '.join(unlike)}" if owner and unlike else ""


def _voters(mine: Likeness, owner: Likeness) -> tuple[str, ...]:
    if not owner.voters or mine.voters == owner.voters:
        return ()
    return ("the voters of fail-safe mode differ from the owner's: it does not go on when the store is down",)
