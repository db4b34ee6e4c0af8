"""What the lease machine asks of its shell, and what it tells it: values only.

An *intent* is the one thing to do next: a store call, a rest or the end. An *effect* is a fact that others
must act on: the gate, the takeover, the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from narwhal.model.lease import AcquireReply, LeaseVersion, LeaseView, Lost, RenewReply


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the machine cannot know: fresh randomness and how this router stands right now.

    `token` and `nonce` are never-repeating, 128 bits; `jitter` is in [0, 1). `rank` orders standbys by
    mirror lag, 0 the freshest. `main_alive`: the main loop ticked within the last 1.5 s. `may_compete`:
    the checks at start are through.
    """

    token: str = field(repr=False)
    nonce: str
    jitter: float
    rank: int = 0
    ready_to_take: bool = True
    main_alive: bool = True
    may_compete: bool = True


# --- intents -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing to do before `until` (may be infinite) unless a command comes."""

    until: float


@dataclass(frozen=True, slots=True)
class Peek:
    pass


@dataclass(frozen=True, slots=True)
class Claim:
    """Plant a vacant marker, raise the epoch key to `floor`."""

    nonce: str
    floor: int
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class Acquire:
    """Compare-and-set on `expected` under `inc`. Repeated attempts keep the token."""

    token: str = field(repr=False)
    expected: LeaseVersion
    inc: str
    floor: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Every attempt has a new, higher `seq`. `life` is that of the last reply confirmed before D."""

    token: str = field(repr=False)
    epoch: int
    seq: int
    life: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Release:
    token: str = field(repr=False)
    reason: str
    successor: str = ""


@dataclass(frozen=True, slots=True)
class AskPledges:
    """Fail-safe mode: ask every other voter not to acquire for T."""

    token: str = field(repr=False)
    epoch: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The machine has stopped: end the keeper."""


Intent = Rest | Peek | Claim | Acquire | Renew | Release | AskPledges | Stop


@dataclass(frozen=True, slots=True)
class Pledged:
    """All other voters pledged."""


Reply = LeaseView | bool | AcquireReply | RenewReply | Lost | Pledged
"""What a call answered; the shell hands in None for *no answer* (also from a single voter)."""


# --- effects -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Granted:
    """Acquired and confirmed before D: restore, publish, then report the gate opened."""

    token: str = field(repr=False)
    epoch: int
    valid_until: float


@dataclass(frozen=True, slots=True)
class Extended:
    """D has moved. `reinstated`: the store had lost the record, publish at once. `claims`: those pending
    against this owner, router ID -> JSON text."""

    token: str = field(repr=False)
    valid_until: float
    reinstated: bool = False
    claims: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fenced:
    """Final for the token: close admission, keep the own last state as the mirror."""

    token: str = field(repr=False)
    why: str


@dataclass(frozen=True, slots=True)
class Released:
    """The lease was given back on purpose. `confirmed` is False if the store never said so."""

    token: str = field(repr=False)
    confirmed: bool


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that a person should see; the machine went on safely."""

    text: str


Effect = Granted | Extended | Fenced | Released | Alarm
