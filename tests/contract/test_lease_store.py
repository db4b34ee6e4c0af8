"""LeaseStore: the rules of cluster.md sections 2 to 4, on the in-memory twin and every real server."""

from __future__ import annotations

import json
import time

import pytest

from narwhal.model.handoff import LogPosition
from narwhal.model.lease import (
    MAX_EPOCH,
    Acquired,
    BadFloor,
    HeldBy,
    LeaseState,
    LeaseVersion,
    Lost,
    NewServer,
    NothingStored,
    OwnerMeta,
    Reinstated,
    Renewed,
    Stale,
)
from narwhal.model.store_call import AcquireRequest, RenewRequest

A = OwnerMeta("a", "http://a:1", host="h1", pid=7, pid_start="99", version="1.0")
B = OwnerMeta("b", "http://b:1")
S = 15.0
TTL = 5000


async def take(stores, token="ta", meta=A, floor=0):
    """What a candidate does that has watched long enough; plants a marker where nothing is."""
    view = await stores.lease.peek(timeout_s=S)
    if view.state is None:
        assert await stores.lease.claim("n-" + token, floor=floor, ttl_ms=TTL, timeout_s=S)
        view = await stores.lease.peek(timeout_s=S)
    return await acquire(stores, view, token, meta, floor)


async def acquire(stores, view, token, meta=A, floor=0):
    request = AcquireRequest(token, meta, view.version, str(view.inc), floor, TTL)
    return await stores.lease.acquire(request, timeout_s=S)


async def renew(stores, token, reply, seq, life=None, meta=A):
    request = RenewRequest(token, meta, reply.epoch, seq, life or reply.life, TTL)
    return await stores.lease.renew(request, timeout_s=S)


async def peek(stores):
    return await stores.lease.peek(timeout_s=S)


async def release(stores, held, reason="done", successor=""):
    return await stores.lease.release(held, reason=reason, successor=successor, timeout_s=S)


def test_an_empty_store_shows_only_the_server(play):
    view = play(peek)
    assert (view.state, view.version, view.epoch, view.epoch_key, view.fields) == (None, None, 0, 0, None)
    assert view.role == "master"
    assert len(view.inc.run_id) == len(view.inc.replid) == 40
    assert abs(view.now_ms - time.time() * 1000) < 60_000


def test_nothing_stored_is_never_acquirable(play):
    async def scenario(s):
        view = await peek(s)
        request = AcquireRequest("t", A, LeaseVersion("", 0), str(view.inc), 0, TTL)
        return await s.lease.acquire(request, timeout_s=S), await peek(s)

    reply, view = play(scenario)
    assert reply == NothingStored()
    assert view.state is None


def test_a_marker_is_planted_once_and_lifts_only_the_epoch_key(play):
    async def scenario(s):
        planted = await s.lease.claim("n1", floor=41, ttl_ms=7000, timeout_s=S)
        again = await s.lease.claim("n2", floor=77, ttl_ms=1000, timeout_s=S)
        return planted, again, await peek(s)

    planted, again, view = play(scenario)
    assert (planted, again) == (True, False)
    assert (view.state, view.version) == (LeaseState.VACANT, LeaseVersion("n1", 0))
    assert (view.epoch, view.epoch_key, view.ttl_ms) == (0, 77, 7000)


def test_a_marker_is_not_planted_over_a_holder_and_lifts_nothing(play):
    async def scenario(s):
        taken = await take(s)
        return (
            taken,
            await s.lease.claim("n2", floor=taken.epoch + 50, ttl_ms=TTL, timeout_s=S),
            await peek(s),
        )

    taken, planted, view = play(scenario)
    assert not planted
    assert view.epoch_key == taken.epoch


def test_acquiring_writes_the_whole_record(play):
    async def scenario(s):
        return await take(s), await peek(s), await s.handoff.read_log(LogPosition(), timeout_s=S)

    taken, view, entries = play(scenario)
    assert isinstance(taken, Acquired)
    assert (view.state, view.version, view.epoch) == (LeaseState.HELD, LeaseVersion("ta", 0), taken.epoch)
    assert (view.owner, view.url, view.sure, view.record_inc) == ("a", "http://a:1", True, str(view.inc))
    assert (view.fields["pid"], view.fields["pid_start"], view.fields["host"]) == ("7", "99", "h1")
    assert view.fields["life"] == taken.life
    assert view.log_top == LogPosition(taken.epoch, 1)
    assert [entry.kind for entry in entries] == ["acquired"]
    assert entries[0].body["owner"] == "a"


def test_the_epoch_is_above_everything_that_remembers(play, backend):
    async def scenario(s):
        first = await take(s, floor=2_000_000_000)
        await release(s, "ta")
        second = await take(s, "tb", B)
        return first.epoch, second.epoch

    first, second = play(scenario)
    assert first == 2_000_000_001
    assert second == first + 1
    backend.flush()
    assert play(lambda s: take(s)).epoch > time.time() - 3600, "the server's calendar is the last memory"


@pytest.mark.parametrize("floor", [MAX_EPOCH, MAX_EPOCH + 1])
def test_an_epoch_above_two_to_the_52_is_never_granted(play, floor):
    """Files, documents and engines refuse such an epoch: its owner could not hand over."""

    async def scenario(s):
        highest = await take(s, floor=MAX_EPOCH - 1)
        held = await peek(s)
        return highest, held, await acquire(s, held, "tb", B, floor=floor), await peek(s)

    highest, held, refused, view = play(scenario)
    assert refused == BadFloor()
    assert highest.epoch == held.epoch == view.epoch == view.epoch_key == MAX_EPOCH
    assert view.version == held.version


def test_the_same_token_again_is_told_its_epoch_and_writes_nothing(play):
    async def scenario(s):
        before = await peek(s) if await s.lease.claim("n", floor=0, ttl_ms=TTL, timeout_s=S) else None
        first = await acquire(s, before, "ta")
        return first, await acquire(s, before, "ta"), await peek(s)

    first, again, view = play(scenario)
    assert again == Acquired(first.epoch, first.life, again=True)
    assert view.epoch_key == first.epoch


def test_another_version_than_watched_is_held(play):
    async def scenario(s):
        taken = await take(s)
        watched = await peek(s)
        await renew(s, "ta", taken, 1)
        return taken, await acquire(s, watched, "tb", B)

    taken, reply = play(scenario)
    assert reply == HeldBy("a", taken.epoch)


def test_a_watched_holder_is_superseded_and_told_so(play):
    async def scenario(s):
        old = await take(s)
        new = await acquire(s, await peek(s), "tb", B)
        return old, new, await renew(s, "ta", old, 1), await release(s, "ta")

    old, new, renewal, released = play(scenario)
    assert new.epoch == max(old.epoch + 1, new.epoch)
    assert new.epoch > old.epoch
    assert renewal == released == Lost("held", new.epoch, "b")


def test_another_incarnation_than_watched_asks_for_a_new_watch(play, backend):
    async def watched(s):
        await take(s)
        return await peek(s)

    before = play(watched)
    backend.save()
    backend.roll_back()

    async def candidate(s):
        return await acquire(s, before, "tb", B), await peek(s)

    reply, after = play(candidate)
    assert reply == NewServer(str(after.inc))
    assert after.inc != before.inc
    assert after.version == before.version


def test_a_renewal_raises_seq_and_keeps_the_life(play):
    async def scenario(s):
        taken = await take(s)
        return taken, await renew(s, "ta", taken, 1), await renew(s, "ta", taken, 5), await peek(s)

    taken, first, second, view = play(scenario)
    assert first == second == Renewed(taken.life, {})
    assert view.version == LeaseVersion("ta", 5)
    assert view.sure


def test_a_seq_that_is_not_above_the_stored_one_is_stale(play):
    async def scenario(s):
        taken = await take(s)
        await renew(s, "ta", taken, 3)
        replies = [await renew(s, "ta", taken, seq) for seq in (3, 2)]
        return replies, await peek(s)

    replies, view = play(scenario)
    assert replies == [Stale(), Stale()]
    assert view.version.seq == 3


def test_a_renewal_with_another_life_leaves_the_lease_unsure(play):
    async def scenario(s):
        taken = await take(s)
        await renew(s, "ta", taken, 1, life="some other life")
        unsure = await peek(s)
        await renew(s, "ta", taken, 2)
        return unsure.sure, (await peek(s)).sure

    assert play(scenario) == (False, True)


def test_the_first_renewal_under_another_incarnation_begins_a_new_life(play, backend):
    taken = play(take)
    backend.save()
    backend.roll_back()

    async def scenario(s):
        first = await renew(s, "ta", taken, 1)
        unsure = await peek(s)
        await renew(s, "ta", taken, 2, life=first.life)
        return first, unsure, await peek(s)

    first, unsure, sure = play(scenario)
    assert first.life != taken.life
    assert unsure.record_inc == str(unsure.inc)
    assert (unsure.sure, sure.sure) == (False, True)


def test_a_lost_record_is_reinstated_unsure(play, backend):
    taken = play(take)
    backend.flush()

    async def scenario(s):
        return await renew(s, "ta", taken, 4), await peek(s)

    reply, view = play(scenario)
    assert isinstance(reply, Reinstated)
    assert reply.life != taken.life
    assert (view.state, view.version, view.epoch) == (LeaseState.HELD, LeaseVersion("ta", 4), taken.epoch)
    assert (view.epoch_key, view.sure, view.owner) == (taken.epoch, False, "a")


def test_a_marker_gives_way_to_the_holder(play, backend):
    taken = play(take)
    backend.flush()

    async def scenario(s):
        await s.lease.claim("n", floor=taken.epoch, ttl_ms=TTL, timeout_s=S)
        return await renew(s, "ta", taken, 1)

    assert isinstance(play(scenario), Reinstated)


def test_a_record_that_went_back_in_time_gives_way_to_the_newer_epoch(play, backend):
    old = play(take)
    backend.save()

    async def successor(s):
        return await acquire(s, await peek(s), "tb", B)

    new = play(successor)
    backend.roll_back()

    async def scenario(s):
        late = await renew(s, "ta", old, 1)
        reinstated = await renew(s, "tb", new, 1, meta=B)
        return late, reinstated, await renew(s, "ta", old, 2), await peek(s)

    late, reinstated, lost, view = play(scenario)
    assert isinstance(late, Renewed)
    assert isinstance(reinstated, Reinstated)
    assert lost == Lost("held", new.epoch, "b")
    assert (view.owner, view.epoch, view.sure) == ("b", new.epoch, False)


def test_a_released_lease_keeps_its_version_and_may_be_taken_for_sure(play):
    async def scenario(s):
        taken = await take(s)
        await renew(s, "ta", taken, 2)
        await release(s, "ta", "yield", "b")
        view = await peek(s)
        return view, await acquire(s, view, "tb", B), await peek(s)

    view, reply, after = play(scenario)
    assert (view.state, view.version) == (LeaseState.RELEASED, LeaseVersion("ta", 2))
    assert (view.reason, view.successor) == ("yield", "b")
    assert view.released_for_sure
    assert reply.epoch == view.epoch + 1
    assert (after.reason, after.successor) == ("", "")


def test_a_release_is_idempotent_and_a_renewal_never_revives_it(play):
    async def scenario(s):
        taken = await take(s)
        replies = [await release(s, "ta"), await release(s, "ta")]
        entries = await s.handoff.read_log(LogPosition(), timeout_s=S)
        return taken, replies, entries, await renew(s, "ta", taken, 9)

    taken, replies, entries, renewal = play(scenario)
    assert replies == [True, True]
    assert [str(entry.position) for entry in entries] == [f"{taken.epoch}-1", f"{taken.epoch}-2"]
    assert entries[1].kind == "released"
    assert renewal == Lost("released", taken.epoch, "a")


def test_a_late_copy_of_an_acquire_does_not_take_again_after_its_release(play):
    async def scenario(s):
        await s.lease.claim("n", floor=0, ttl_ms=TTL, timeout_s=S)
        watched = await peek(s)
        await acquire(s, watched, "ta")
        await release(s, "ta")
        now = await peek(s)
        return await acquire(s, watched, "ta"), await acquire(s, now, "ta"), await peek(s)

    late, again, view = play(scenario)
    assert isinstance(late, HeldBy)
    assert isinstance(again, HeldBy)
    assert view.state is LeaseState.RELEASED


def test_a_released_lease_after_a_late_renewal_on_old_data_is_not_for_sure(play, backend):
    """Directed: the old owner's late renewal and release must not open a shortcut past its successor."""
    old = play(take)
    play(lambda s: renew(s, "ta", old, 1))
    backend.save()

    async def successor(s):
        return await acquire(s, await peek(s), "tb", B)

    play(successor)
    backend.roll_back()

    async def late(s):
        renewed = await renew(s, "ta", old, 2)
        return renewed, await release(s, "ta"), await peek(s)

    renewed, released, view = play(late)
    assert isinstance(renewed, Renewed)
    assert released is True
    assert not view.released_for_sure


def test_a_released_lease_after_a_late_renewal_on_an_emptied_server_is_not_for_sure(play, backend):
    """Directed: FLUSHALL keeps the incarnation; a late renewal reinstates, its release is no shortcut."""

    async def owners(s):
        old = await take(s)
        renewed = await renew(s, "ta", old, 1)
        await acquire(s, await peek(s), "tb", B)
        return old, renewed

    old, renewed = play(owners)
    backend.flush()

    async def late(s):
        again = await renew(s, "ta", old, 2, life=renewed.life)
        return again, await release(s, "ta"), await peek(s)

    again, released, view = play(late)
    assert isinstance(again, Reinstated)
    assert released is True
    assert view.state is LeaseState.RELEASED
    assert not view.released_for_sure


def test_a_lease_released_under_another_incarnation_is_not_for_sure(play, backend):
    play(take)
    play(lambda s: release(s, "ta"))
    assert play(peek).released_for_sure
    backend.save()
    backend.roll_back()
    assert not play(peek).released_for_sure


def test_a_release_by_version_is_a_compare_and_set(play):
    async def scenario(s):
        taken = await take(s)
        await renew(s, "ta", taken, 1)
        stale = await release(s, LeaseVersion("ta", 0), "dead")
        return taken, stale, await release(s, LeaseVersion("ta", 1), "dead"), await peek(s)

    taken, stale, released, view = play(scenario)
    assert stale == Lost("held", taken.epoch, "a")
    assert released is True
    assert (view.state, view.reason) == (LeaseState.RELEASED, "dead")


def test_nothing_and_a_marker_cannot_be_released(play):
    async def scenario(s):
        nothing = await release(s, "ta")
        await s.lease.claim("ta", floor=0, ttl_ms=TTL, timeout_s=S)
        return nothing, await release(s, "ta")

    assert play(scenario) == (Lost("", 0, ""), Lost("vacant", 0, ""))


async def depose(stores, version, reason="operator"):
    return await stores.lease.depose(version, reason=reason, timeout_s=S)


def test_an_operator_ends_a_tenure_by_its_version_and_others_still_watch(play):
    async def scenario(s):
        taken = await take(s)
        await renew(s, "ta", taken, 1)
        stale = await depose(s, LeaseVersion("ta", 0))
        done = await depose(s, LeaseVersion("ta", 1), "moved away")
        entries = await s.handoff.read_log(LogPosition(), timeout_s=S)
        return taken, (stale, done), entries, await peek(s), await renew(s, "ta", taken, 2)

    taken, deposed, entries, view, renewal = play(scenario)
    assert deposed == (False, True)
    assert (view.state, view.version) == (LeaseState.RELEASED, LeaseVersion("ta", 1))
    assert (view.reason, view.successor, view.deposed) == ("moved away", "", True)
    assert not view.released_for_sure
    assert [str(entry.kind) for entry in entries] == ["acquired", "released"]
    assert renewal == Lost("released", taken.epoch, "a")


def test_a_released_lease_that_is_deposed_is_no_shortcut_any_more(play):
    async def scenario(s):
        await take(s)
        await release(s, "ta")
        sure = (await peek(s)).released_for_sure
        done = await depose(s, LeaseVersion("ta", 0))
        entries = await s.handoff.read_log(LogPosition(), timeout_s=S)
        return sure, done, len(entries), (await peek(s)).released_for_sure

    assert play(scenario) == (True, True, 2, False)


def test_nothing_and_a_marker_cannot_be_deposed(play):
    async def scenario(s):
        nothing = await depose(s, LeaseVersion("n", 0))
        await s.lease.claim("n", floor=0, ttl_ms=TTL, timeout_s=S)
        return nothing, await depose(s, LeaseVersion("n", 0)), (await peek(s)).state

    assert play(scenario) == (False, False, LeaseState.VACANT)


def test_the_next_owner_is_deposed_no_more(play):
    async def scenario(s):
        await take(s)
        await depose(s, LeaseVersion("ta", 0))
        await acquire(s, await peek(s), "tb", B)
        return (await peek(s)).deposed

    assert play(scenario) is False


def test_claims_reach_the_owner_with_a_renewal_until_they_are_withdrawn(play):
    async def scenario(s):
        taken = await take(s)
        put = await s.registry.put_claim("b", epoch=taken.epoch, reason="unheard", timeout_s=S)
        heard = await renew(s, "ta", taken, 1)
        await s.registry.put_claim("b", epoch=taken.epoch, reason="", timeout_s=S)
        return taken, put, heard, await renew(s, "ta", taken, 2)

    taken, put, heard, after = play(scenario)
    assert put is True
    assert {name: json.loads(text) for name, text in heard.claims.items()} == {
        "b": {"epoch": taken.epoch, "reason": "unheard"}
    }
    assert after.claims == {}


def test_an_acquire_deletes_the_claims(play):
    async def scenario(s):
        old = await take(s)
        await s.registry.put_claim("b", epoch=old.epoch, reason="unheard", timeout_s=S)
        new = await acquire(s, await peek(s), "tb", B)
        return await renew(s, "tb", new, 1, meta=B)

    assert play(scenario).claims == {}


def test_a_claim_against_another_epoch_or_nobody_is_not_put(play):
    async def scenario(s):
        taken = await take(s)
        before = await s.registry.put_claim("b", epoch=taken.epoch - 1, reason="late", timeout_s=S)
        claims = (await renew(s, "ta", taken, 1)).claims
        await release(s, "ta")
        after = await s.registry.put_claim("b", epoch=taken.epoch, reason="late", timeout_s=S)
        return before, claims, after

    assert play(scenario) == (False, {}, False)


def test_odd_texts_come_back_as_they_were(play):
    meta = OwnerMeta("a-ü\n\"'{}", "http://[::1]:8/%20", version="{1}")

    async def scenario(s):
        await take(s, "ta", meta)
        await release(s, "ta", "reason with spaces, \\ and ☃", "b")
        return await peek(s)

    view = play(scenario)
    assert (view.owner, view.url, view.fields["version"]) == (meta.router_id, meta.url, "{1}")
    assert view.reason == "reason with spaces, \\ and ☃"
