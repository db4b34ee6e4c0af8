"""Puts one router's membership together. Runtime and the simulation both call this, so both run the same.

What runs where: `keeper.run()` on the keeper's thread and loop, with `stores.lease` made there; everything
else on the main loop. `tell` must bring the keeper's effects to `member.take` on the main loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from narwhal.clock import Clock
from narwhal.cluster.claims import Claimant, ClaimCourt, ClaimPorts, ClaimRules, Probing, engines_pass
from narwhal.cluster.doubt import Doubt
from narwhal.cluster.failsafe import AddressBook, Asker, NoPeers, PledgeRounds
from narwhal.cluster.flush import TotalsFlusher
from narwhal.cluster.gate import HANDOVER_S, LeasedGate
from narwhal.cluster.history import History
from narwhal.cluster.lease_loop import KeeperLinks, LeaseKeeper, no_warden
from narwhal.cluster.member import Crew, Member
from narwhal.cluster.mirror import Mirror
from narwhal.cluster.publisher import Blocking, Publisher, PublisherPorts
from narwhal.cluster.pulse import Pulse
from narwhal.cluster.roster import Roster
from narwhal.cluster.saving import SaveBook, Saver
from narwhal.cluster.start import SavedFile, StartChecks, StartPorts, StartRules
from narwhal.cluster.state import Identity, OwnState
from narwhal.cluster.takeover import Takeover
from narwhal.cluster.view import LeasedView
from narwhal.cluster.yielding import Yielding
from narwhal.model.handoff import SCHEMA_VERSION, EntryKind, LogEntry
from narwhal.model.leadership import LeaseSight
from narwhal.model.lease import OwnerMeta
from narwhal.model.settings import LeaseTimings
from narwhal.model.store_call import RouterEntry
from narwhal.policy.candidacy import ElectionSettings
from narwhal.policy.claims import Truce
from narwhal.policy.death import ProcessSight, blind
from narwhal.policy.election import Election
from narwhal.policy.fleet import Fleet
from narwhal.policy.intents import Effect
from narwhal.policy.totals import Totals
from narwhal.policy.unlikeness import voters_digest
from narwhal.ports import Checkpoint, HandoffStore, LeaseStore, LogFeed, Peers, Recorder, Registry


@dataclass(frozen=True, slots=True)
class Stores:
    """`lease` belongs to the keeper's loop, the others to the main loop. Three connections, never shared:
    `record`, the same lease for who reads or frees it without holding it, is on the data connection."""

    lease: LeaseStore
    record: LeaseStore
    handoffs: HandoffStore
    feed: LogFeed
    registry: Registry
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the process lends. `draw`: a fresh 128-bit text; `jitter`: a number in [0, 1); `tell`: takes an
    effect on the keeper's thread and brings it to `Member.take` on the main loop; `tell_token`: takes token
    and floor of an acquire before it is sent, on the keeper's thread; `look`: what the system says of a PID.
    `election`: the lease machine to run; tests that break a rule on purpose hand in theirs. `peers` asks
    other routers from the main loop (None: nobody is asked and no claim is put), `keeper_peers` from the
    keeper's; `probe` asks the engines."""

    clock: Clock
    recorder: Recorder
    draw: Callable[[], str]
    jitter: Callable[[], float]
    blocking: Blocking
    tell: Callable[[Effect | LeaseSight], None]
    election: type[Election] = Election
    tell_token: Callable[[str, int], None] = no_warden
    peers: Peers | None = None
    keeper_peers: Peers = field(default_factory=NoPeers)
    look: Callable[[int], ProcessSight] = blind
    probe: Probing = engines_pass


@dataclass(frozen=True, slots=True)
class MemberSettings:
    cluster: str
    meta: OwnerMeta
    identity: Identity
    timings: LeaseTimings
    prefer_standby: bool = False
    resume: bool = False
    max_handoff_age_s: float = 30.0
    config_digest: str = ""
    contract_digest: str = ""
    section_digests: Mapping[str, str] = field(default_factory=dict)
    failsafe: tuple[str, ...] = ()
    """The voters; empty: fail-safe mode is off."""
    takeover_after: int = 4
    failure_limit: int = 5
    """`controller.monitor_failure_limit`: checkpoints that fail in a row."""


@dataclass(frozen=True, slots=True)
class Membership:
    """What runtime keeps hold of."""

    member: Member
    keeper: LeaseKeeper
    gate: LeasedGate
    view: LeasedView
    publisher: Publisher
    mirror: Mirror
    roster: Roster
    takeover: Takeover
    yielding: Yielding
    court: ClaimCourt


@dataclass(frozen=True, slots=True)
class Owned:
    """The machines whose state travels."""

    fleet: Fleet
    totals: Totals


def nudging(keeper: LeaseKeeper, court: ClaimCourt) -> Callable[[LogEntry], None]:
    """A change of hands in the log is looked at now, not at the next peek."""
    hands = {EntryKind.RELEASED, EntryKind.ACQUIRED, EntryKind.UNREADABLE}

    def on_entry(entry: LogEntry) -> None:
        if entry.kind in hands:
            keeper.nudge()
            court.saw(entry)

    return on_entry


def _entry(settings: MemberSettings) -> RouterEntry:
    meta = settings.meta
    return RouterEntry(
        router_id=meta.router_id,
        run=settings.identity.run,
        role="standby",
        url=meta.url,
        control_url=meta.control_url,
        version=meta.version,
        config_digest=settings.config_digest,
        contract_digest=settings.contract_digest,
        section_digests=settings.section_digests,
        voters=voters_digest(settings.failsafe),
        schema_version=SCHEMA_VERSION,
        process=meta.process,
    )


def _gate(meta: OwnerMeta, surroundings: Surroundings) -> LeasedGate:
    gate = LeasedGate(surroundings.clock, meta.router_id)
    gate.doubt = Doubt(surroundings.peers, surroundings.clock, lasts_s=HANDOVER_S)
    return gate


def _start(
    settings: MemberSettings, stores: Stores, *, file: SavedFile, mirror: Mirror, surroundings: Surroundings
) -> StartChecks:
    identity = settings.identity
    rules = StartRules(
        cluster=settings.cluster,
        router_id=identity.router_id,
        run=identity.run,
        engines=identity.engines,
        model=identity.model,
        resume=settings.resume,
        process=settings.meta.process,
    )
    ports = StartPorts(
        record=stores.record,
        handoffs=stores.handoffs,
        registry=stores.registry,
        look=surroundings.look,
        clock=surroundings.clock,
        recorder=surroundings.recorder,
        jitter=surroundings.jitter,
    )
    return StartChecks(rules, ports, file=file, mirror=mirror)


def _claims(
    settings: MemberSettings,
    stores: Stores,
    *,
    gate: LeasedGate,
    roster: Roster,
    surroundings: Surroundings,
) -> tuple[Claimant, ClaimCourt]:
    timings, truce = settings.timings, Truce()
    ports = ClaimPorts(
        surroundings.peers,
        stores.registry,
        surroundings.clock,
        surroundings.recorder,
        surroundings.probe,
    )
    rules = ClaimRules(
        settings.meta.router_id,
        ttl_s=timings.ttl_s,
        poll_s=timings.standby_probe_interval_s,
        after=settings.takeover_after,
    )
    claimant = Claimant(ports, rules, gate=gate, roster=roster, truce=truce)
    return claimant, ClaimCourt(ports, rules, gate=gate, roster=roster, truce=truce)


def _rounds(settings: MemberSettings, surroundings: Surroundings, *, book: AddressBook) -> PledgeRounds:
    asker = Asker(
        settings.meta.router_id,
        settings.timings.ttl_s,
        surroundings.keeper_peers,
        surroundings.clock,
        surroundings.draw,
    )
    return PledgeRounds(asker, settings.failsafe, book=book)


def _inform(roster: Roster, settings: MemberSettings, *, saves: SaveBook, fleet: Fleet) -> None:
    """What a router's entry and its fitness depend on."""
    voters = settings.failsafe
    roster.may_own = not voters or settings.meta.router_id in voters
    roster.engines, roster.max_age_s = frozenset(settings.identity.engines), settings.max_handoff_age_s
    roster.model = settings.identity.model
    roster.unsaved = lambda: saves.broken
    roster.resident = lambda: sum(legs.prefill + legs.decode for legs in fleet.resident().values())


def assemble(
    settings: MemberSettings, stores: Stores, *, owned: Owned, surroundings: Surroundings
) -> Membership:
    """Reads the checkpoint, opens no connection, starts nothing."""
    clock, meta = surroundings.clock, settings.meta
    gate, pulse = _gate(meta, surroundings), Pulse(clock)
    book = AddressBook(settings.failsafe)
    links = KeeperLinks(
        clock,
        meta,
        surroundings.tell,
        lambda: pulse.at,
        draw=surroundings.draw,
        jitter=surroundings.jitter,
        tell_token=surroundings.tell_token,
        rounds=_rounds(settings, surroundings, book=book),
    )
    file = SavedFile(stores.checkpoint, boot_id=settings.identity.boot_id, clock=clock)
    voters, prefer_standby = frozenset(settings.failsafe), settings.prefer_standby
    election = ElectionSettings(meta.router_id, settings.timings, prefer_standby, voters)
    machine = surroundings.election(election, file.remembered, now=clock.now())
    keeper = LeaseKeeper(machine, stores.lease, gate=gate, links=links)
    gate.supersede = lambda token, floor, why: keeper.supersede(token, floor, why=why)
    mirror = Mirror(stores.feed, stores.handoffs, clock=clock)
    roster = Roster(stores.registry, _entry(settings), mirror=mirror, keeper=keeper, gate=gate)
    saves = SaveBook(limit=settings.failure_limit, recorder=surroundings.recorder)
    claimant, court = _claims(settings, stores, gate=gate, roster=roster, surroundings=surroundings)
    claimant.failing = lambda: saves.failing
    mirror.on_entry = nudging(keeper, court)
    state = OwnState(owned.fleet, owned.totals, identity=settings.identity, clock=clock)
    ports = PublisherPorts(stores.handoffs, stores.checkpoint, saves, clock, surroundings.blocking)
    flusher = TotalsFlusher(stores.handoffs, owned.totals, clock=clock)
    state.counters = lambda: flusher.confirmed
    state.remember(file.state, file.totals)
    publisher = Publisher(ports, state, gate=gate, keeper=keeper, mirror=mirror)
    crew = Crew(
        clock,
        gate,
        keeper,
        mirror,
        publisher,
        saver=Saver(publisher.checkpoint, saves, clock=clock),
        takeover=Takeover(stores.handoffs, state, flusher=flusher, publisher=publisher, clock=clock),
        flusher=flusher,
        roster=roster,
        start=_start(settings, stores, file=file, mirror=mirror, surroundings=surroundings),
        pulse=pulse,
        history=History(surroundings.recorder, router_id=meta.router_id, clock=clock),
        court=court,
        claimant=claimant,
        recorder=surroundings.recorder,
    )
    roster.book = book
    _inform(roster, settings, saves=saves, fleet=owned.fleet)
    member = Member(crew, max_age_s=roster.max_age_s, ttl_s=settings.timings.ttl_s, resume=settings.resume)
    view = LeasedView(gate, mirror=mirror, publisher=publisher, roster=roster, history=crew.history)
    yielding = Yielding(member, roster, gate=gate, clock=clock)
    return Membership(
        member,
        keeper,
        gate,
        view,
        publisher,
        mirror,
        roster,
        takeover=crew.takeover,
        yielding=yielding,
        court=court,
    )
