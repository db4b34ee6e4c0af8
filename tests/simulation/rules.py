"""Every rule of the cluster contract that can be broken here, with what notices when it is.

A rule marked in the contract with a flag, or that the design wants broken on purpose, has an entry. `scene`
does no harm while the rule holds; while it is broken (`tests.support.broken_rules`), the checkers must find
what `caught` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.simulation import schedules
from tests.simulation.stage import Scene
from tests.support.broken_rules import BREAKS, Break


@dataclass(frozen=True, slots=True)
class Rule:
    """`says` is the rule in short, `broken` the name of its breach, `flag` which of `FLAGS` it is part of."""

    says: str
    broken: str
    scene: Scene
    caught: str
    flag: str = ""

    @property
    def breach(self) -> Break:
        return BREAKS[self.broken]


FLAGS: Mapping[str, str] = {
    "seq": "every attempt of a renewal has a new, higher seq",
    "stale": "a seq not above the stored one of the same token is STALE: nothing is written, no answer",
    "ttl": "T of the watching rule is the greatest of its own, the record's and any ever seen",
    "again": "after AGAIN, D counts from before the first send of that token's acquire",
    "life": "a record has a life; sure says whether the last renewal confirmed it",
    "replicas": "N follows the highest replica count seen or stored",
    "socket": "a reconnect between script and WAIT is no answer",
    "totals": "no deltas, nothing to repeat wrongly",
    "step": "extending D and fencing are one step under one lock",
    "keeper": "fenced is final for the token; the keeper checks it before every send",
    "death": "EPERM, an unreadable /proc and state Z prove nothing",
    "truce": "after a yield by claim neither side claims or yields by claim for a while",
    "mirror": "the mirror never forbids acquiring",
}
"""The sentences that the contract marks: each needs a test that fails when the rule is taken out."""

ELSEWHERE: Mapping[str, str] = {
    "socket": "tests/contract/test_wait_socket.py::test_a_reconnect_between_script_and_wait_is_noticed",
    "step": "tests/unit/cluster/test_gate.py::test_extending_and_fencing_are_one_step_each_under_one_lock",
}
"""Marked rules that a simulated store cannot show: flag -> the test in which the rule is broken too."""

_ONE_RATE = {"a": 1.0, "b": 1.0, "c": 1.0}
_FAST_WATCHERS = {"a": 0.9, "b": 1.12, "c": 1.12}

RULES: Mapping[str, Rule] = {
    "deadline-from-send": Rule(
        "D counts from before the send of the confirmed attempt",
        broken="DeadlineFromReply",
        scene=Scene(schedules.late_reading),
        caught="I1",
    ),
    "again-from-first-send": Rule(
        "after AGAIN, D counts from before the first send of the token's acquire",
        broken="AgainFromRetry",
        scene=Scene(schedules.lost_acquire_replies),
        caught="I1",
        flag="again",
    ),
    "new-seq-per-attempt": Rule(
        "every attempt of a renewal has a new, higher seq",
        broken="SameSeqOnRetry",
        scene=Scene(schedules.deaf_for_two_attempts),
        caught="I1",
        flag="seq",
    ),
    "stale-writes-nothing": Rule(
        "a seq not above the stored one of the same token writes nothing and is no answer",
        broken="NoStale",
        scene=Scene(schedules.late_copy_of_a_renewal, rates=_ONE_RATE),
        caught="I1",
        flag="stale",
    ),
    "observation-not-ttl": Rule(
        "a held lease is taken on a version seen unchanged for T, not on what the server's clock says",
        broken="TtlInsteadOfObservation",
        scene=Scene(schedules.step_forward),
        caught="I1",
    ),
    "whole-watch": Rule(
        "the watch lasts T",
        broken="HalfTheWatch",
        scene=Scene(schedules.cut_off_after_a_renewal),
        caught="I1",
    ),
    "greatest-ttl": Rule(
        "the watch takes the greatest TTL: the own one, the record's, any ever seen",
        broken="OwnTtlOnly",
        scene=Scene(schedules.cut_off_after_a_renewal, ttls={"a": 8.0}),
        caught="I1",
        flag="ttl",
    ),
    "one-incarnation": Rule(
        "a version is watched and swapped under one server incarnation",
        broken="NoIncarnation",
        scene=Scene(schedules.rolled_back_record, rates=_ONE_RATE),
        caught="I1",
    ),
    "reclaim-before-deadline": Rule(
        "an own record is swapped at sight only before the old D and under the incarnation last confirmed",
        broken="ReclaimsForEver",
        scene=Scene(schedules.overruled_and_rolled_back, rates=_ONE_RATE),
        caught="I1",
    ),
    "vacant-marker": Rule(
        "nothing stored is never acquirable: a marker is planted and watched for T",
        broken="NoMarker",
        scene=Scene(schedules.emptied_under_an_owner),
        caught="I1",
    ),
    "life-and-sure": Rule(
        "a released lease is taken at once only if its life is the server's present one and sure",
        broken="ShortcutAlways",
        scene=Scene(schedules.old_record_comes_back_released),
        caught="I1",
        flag="life",
    ),
    "sure-after-a-loss": Rule(
        "a record that a renewal wrote anew is not sure",
        broken="ShortcutWithoutSure",
        scene=Scene(schedules.old_record_is_planted_and_released),
        caught="I1",
        flag="life",
    ),
    "margin": Rule(
        "D ends M before T: clocks may run at rates up to T/(T-M) apart",
        broken="MarginZero",
        scene=Scene(schedules.cut_off_after_a_renewal, rates=_FAST_WATCHERS),
        caught="I1",
    ),
    "wait-for-replicas": Rule(
        "acquire and renew count only when replicas have them",
        broken="NoWait",
        scene=Scene(schedules.isolated_master, replicas=1),
        caught="I1",
    ),
    "sticky-replica-count": Rule(
        "N follows the highest replica count ever seen or stored, not who is connected",
        broken="ConnectedReplicasOnly",
        scene=Scene(schedules.isolated_master, replicas=1),
        caught="I1",
        flag="replicas",
    ),
    "forbidden-is-no-proof": Rule(
        "a process that may not be signalled (EPERM) is not proved dead",
        broken="EpermIsDeath",
        scene=Scene(schedules.not_permitted_to_signal),
        caught="I1",
        flag="death",
    ),
    "zombie-is-no-proof": Rule(
        "state Z proves no death: other threads may run on",
        broken="ZombieIsDeath",
        scene=Scene(schedules.first_thread_has_ended),
        caught="I1",
        flag="death",
    ),
    "start-time-must-be-read": Rule(
        "an unreadable /proc proves no death",
        broken="UnreadableIsDeath",
        scene=Scene(schedules.unreadable_start_time),
        caught="I1",
        flag="death",
    ),
    "truce-after-a-claim": Rule(
        "after a yield by claim there is none for 60 s, doubling to 10 min, for what others may share",
        broken="NoTruce",
        scene=Scene(schedules.a_common_cause),
        caught="truce",
        flag="truce",
    ),
    "nobody-claims-back": Rule(
        "a cause that seems the owner's own ends the truce for nobody who has yielded by claim in it",
        broken="ClaimsBackInTruce",
        scene=Scene(schedules.a_disk_that_fails_owners, duration_s=48.0),
        caught="truce",
        flag="truce",
    ),
    "stored-before-answered": Rule(
        "a drain is answered as done and durable when its entry is stored, not before",
        broken="AnswersBeforeStored",
        scene=Scene(schedules.drained_behind_a_cut),
        caught="I5",
    ),
    "mirror-never-forbids": Rule(
        "a mirror that is not current never forbids acquiring",
        broken="MirrorMustBeFresh",
        scene=Scene(schedules.without_a_mirror),
        caught="I10",
        flag="mirror",
    ),
    "absolute-totals": Rule(
        "counters are flushed as absolute values, and the greater one is kept",
        broken="DeltaCounters",
        scene=Scene(schedules.unanswered_flushes),
        caught="I4",
        flag="totals",
    ),
    "keeper-asks-the-gate": Rule(
        "the keeper checks before every send that its token is not fenced",
        broken="FencedStillSends",
        scene=Scene(schedules.fenced_elsewhere),
        caught="I9",
        flag="keeper",
    ),
}
