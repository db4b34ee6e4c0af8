"""What every case owes, as rules that yield sentences: none where all is well. The tests and `make faults`
ask the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

from tests.faults.judge import dispatched_too_late, lost_beyond, sent_over_avoided_edges
from tests.faults.play import Seen, play
from tests.faults.site import READMIT_EVERY, Site
from tests.faults.switches import DECODE, Owed, Switch
from tests.support.load import WRONG

TRIES = 3
BACK_PASSES = 2 * READMIT_EVERY
"""Two probe intervals."""
HOLDS_OF_A_PARTNER = 2
PROBE_PASSES = 1
"""A probe is asked in one pass, and what it showed may be seen in the next."""

Rule = Callable[[Seen], Iterator[str]]


def is_late(seen: Seen, iid: str) -> bool:
    """Whether it was out for longer than two probe intervals after its repair."""
    return seen.out_for.get(iid, 0) > BACK_PASSES


# --- one fault --------------------------------------------------------------------------------------


def taken_out_and_nobody_else(seen: Seen) -> Iterator[str]:
    owed = seen.owing(Owed.OUT)
    if set(seen.out_s) != owed or seen.ejected != owed:
        yield f"out were {sorted(seen.out_s)}, ejected {sorted(seen.ejected)}: that is owed by {sorted(owed)}"


def for_a_reason_that_tells_the_fault(seen: Seen) -> Iterator[str]:
    for switch, iid in seen.faults:
        reasons = [verdict.reason for verdict in seen.verdicts_on(iid)]
        if not reasons or not all(reasons):
            yield f"a verdict on {iid} has no reason, or there is none"
        elif switch.reasons and not any(word in reason for word in switch.reasons for reason in reasons):
            yield f"no reason tells of {' or '.join(switch.reasons)}: {reasons}"


def out_after_so_many_failures(seen: Seen) -> Iterator[str]:
    for iid in seen.owing(Owed.OUT):
        for row in lost_beyond(seen, iid):
            yield f"{iid} still failed {row['rid']}, which was not in flight at its third failure"


def spared_while_out(seen: Seen) -> Iterator[str]:
    for iid in seen.owing(Owed.OUT):
        for row in dispatched_too_late(seen, iid):
            yield f"{row['rid']} was sent to {iid} while it was out"


def back_in_time(seen: Seen) -> Iterator[str]:
    """Counted in monitor passes, so a slow machine proves nothing."""
    for iid, passes in seen.out_for.items():
        if passes > BACK_PASSES + PROBE_PASSES:
            yield f"{iid} was still out {passes} passes after its repair"


def served_again(seen: Seen) -> Iterator[str]:
    for iid in seen.targets:
        if iid not in seen.served_again:
            yield f"{iid} served nothing after its repair"


def nobody_taken_out(seen: Seen) -> Iterator[str]:
    if seen.out_s or seen.verdicts:
        yield f"out were {sorted(seen.out_s)}, by {[verdict.reason for verdict in seen.verdicts]}"


def edges_avoided(seen: Seen) -> Iterator[str]:
    if seen.ejected or not seen.avoided >= seen.broken:
        yield (
            f"avoided were {sorted(seen.avoided)}, ejected {sorted(seen.ejected)}: "
            f"{sorted(seen.broken)} were owed"
        )
    for row in sent_over_avoided_edges(seen):
        yield f"{row['rid']} went over an avoided edge"


def no_answer_is_wrong(seen: Seen) -> Iterator[str]:
    if WRONG in seen.saw:
        yield f"{seen.saw[WRONG]} answers had a wrong text"
    if seen.lost and all(switch.lossless for switch in seen.switches):
        yield f"{len(seen.lost)} requests were lost by what costs nothing: {dict(seen.saw)}"


# --- two faults -------------------------------------------------------------------------------------


def each_judged_by_itself(seen: Seen) -> Iterator[str]:
    """Where both are at fault, an edge between them may be avoided before one of them is out. A consumer with
    one broken edge fails with two producers where another one's KV is bad too: that is held against it. And a
    producer whose KV two consumers fail with is suspected, until a probe clears it."""
    owed, at_edges = seen.owing(Owed.OUT), seen.owing(Owed.EDGE)
    shared = any(switch.shows_at_partners for switch in seen.switches)
    avoided = {iid for edge in seen.avoided for iid in edge}
    must = owed - {iid for switch, iid in seen.faults if switch.passes}
    if not seen.ejected <= (owed | at_edges if shared else owed) or not must <= seen.ejected | avoided:
        yield f"ejected were {sorted(seen.ejected)}, avoided {sorted(seen.avoided)}: out are {sorted(owed)}"
    sound = set(seen.out_s) - owed - at_edges
    if sound and not (shared or all(switch.role == DECODE for switch in seen.switches)):
        yield f"sound engines were out: {sorted(sound)}"
    for iid in sound:
        holds = [verdict.reason for verdict in seen.verdicts_on(iid)]
        if len(holds) > HOLDS_OF_A_PARTNER:
            yield f"{iid}, which is sound, was held {len(holds)} times: {holds}"


OF_ONE: Mapping[Owed, tuple[Rule, ...]] = {
    Owed.OUT: (
        taken_out_and_nobody_else,
        for_a_reason_that_tells_the_fault,
        out_after_so_many_failures,
        spared_while_out,
        back_in_time,
        served_again,
        no_answer_is_wrong,
    ),
    Owed.KEPT: (nobody_taken_out, served_again, no_answer_is_wrong),
    Owed.EDGE: (edges_avoided, served_again, no_answer_is_wrong),
}
OF_TWO: tuple[Rule, ...] = (each_judged_by_itself, back_in_time, served_again, no_answer_is_wrong)


def rules_of(switches: tuple[Switch, ...]) -> tuple[Rule, ...]:
    return OF_ONE[switches[0].owed] if len(switches) == 1 else OF_TWO


def breaches(seen: Seen) -> list[str]:
    """What did not hold in this case."""
    return list(chain.from_iterable(rule(seen) for rule in rules_of(tuple(seen.switches))))


def name_of(case: Sequence[Switch]) -> str:
    return " + ".join(switch.id for switch in case)


async def played(site: Site, case: Sequence[Switch]) -> Seen:
    """Again, where a rule did not hold and the router itself had stood still: that may be why."""
    for _ in range(TRIES):
        seen = await play(site, *case)
        if not (seen.stood_still and breaches(seen)):
            break
    return seen
