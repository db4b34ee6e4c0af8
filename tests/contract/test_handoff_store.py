"""HandoffStore, LogFeed and Registry on the in-memory twin and every real server."""

from __future__ import annotations

import asyncio
import time

import pytest

from narwhal.errors import StoreUnreachable
from narwhal.model.handoff import EntryKind, LogEntry, LogPosition
from narwhal.model.lease import Appended, Lost, OldEpoch, OwnerMeta, Published, TopIs
from narwhal.model.process import ProcessMark
from narwhal.model.request import Counters
from narwhal.model.store_call import AcquireRequest, AppendRequest, PublishRequest, RenewRequest, RouterEntry

S = 15.0
START = LogPosition()


async def own(stores, token="ta", owner="a"):
    """Takes the lease, whatever is stored. Gives the epoch."""
    await stores.lease.claim("n-" + token, floor=0, ttl_ms=5000, timeout_s=S)
    view = await stores.lease.peek(timeout_s=S)
    request = AcquireRequest(token, OwnerMeta(owner, ""), view.version, str(view.inc), 0, 5000)
    return (await stores.lease.acquire(request, timeout_s=S)).epoch


async def append(stores, epoch, n, token="ta", **body):
    request = AppendRequest(token, LogPosition(epoch, n), EntryKind.DELTA, body or {"n": n})
    return await stores.handoff.append(request, timeout_s=S)


async def publish(stores, epoch, seq, token="ta", upto=None, document=b"{}"):
    request = PublishRequest(token, epoch, seq, upto or LogPosition(epoch, 1), document)
    return await stores.handoff.publish(request, timeout_s=S)


async def log(stores, after=START, **limits):
    return await stores.handoff.read_log(after, timeout_s=S, **limits)


def ids(entries):
    return [(entry.position.n, str(entry.kind)) for entry in entries]


# --- log -------------------------------------------------------------------------------------------


def test_the_owner_appends_above_its_acquired_entry(play):
    async def scenario(s):
        epoch = await own(s)
        replies = [await append(s, epoch, 2, roles={"e0": "decode"}, at=1.5), await append(s, epoch, 3)]
        return epoch, replies, await log(s)

    epoch, replies, entries = play(scenario)
    assert replies == [Appended(f"{epoch}-2"), Appended(f"{epoch}-3")]
    assert ids(entries) == [(1, "acquired"), (2, "delta"), (3, "delta")]
    body = {"roles": {"e0": "decode"}, "at": 1.5}
    assert entries[1] == LogEntry(LogPosition(epoch, 2), EntryKind.DELTA, body)


def test_an_id_that_is_not_above_the_top_is_refused_and_can_be_read_back(play):
    async def scenario(s):
        epoch = await own(s)
        await append(s, epoch, 7, x=1)
        refused = [await append(s, epoch, n, x=2) for n in (7, 3, 1)]
        return epoch, refused, await log(s, LogPosition(epoch, 6), through=LogPosition(epoch, 7))

    epoch, refused, entries = play(scenario)
    assert refused == [TopIs(f"{epoch}-7")] * 3
    assert [entry.body for entry in entries] == [{"x": 1}]


def test_a_superseded_owner_writes_neither_log_nor_document(play):
    async def scenario(s):
        old = await own(s)
        new = await own(s, "tb", "b")
        replies = [await append(s, old, 9), await publish(s, old, 1)]
        return new, replies, ids(await log(s)), await s.handoff.load(timeout_s=S)

    new, replies, entries, stored = play(scenario)
    assert replies == [Lost("held", new, "b")] * 2
    assert entries == [(1, "acquired"), (1, "acquired")]
    assert stored is None


def test_a_token_with_another_epoch_is_lost(play):
    async def scenario(s):
        epoch = await own(s)
        return epoch, await append(s, epoch + 1, 2), await publish(s, epoch - 1, 1)

    epoch, *replies = play(scenario)
    assert replies == [Lost("held", epoch, "a")] * 2


def test_a_lost_record_is_told_as_epoch_zero(play, backend):
    epoch = play(own)
    backend.flush()

    async def scenario(s):
        return await append(s, epoch, 2), await publish(s, epoch, 1)

    assert play(scenario) == (Lost("", 0, ""), Lost("", 0, ""))


def test_a_higher_epoch_in_the_log_is_told_as_a_floor(play, backend):
    """The lease went back in time, the log did not: both writes name the newer epoch."""
    old = play(own)
    backend.save()
    new = play(lambda s: own(s, "tb", "b"))
    backend.roll_back()

    async def scenario(s):
        meta = OwnerMeta("b", "")
        await s.lease.renew(RenewRequest("tb", meta, new, 1, "", 5000), timeout_s=S)
        await append(s, new, 2, "tb")
        lease_back_to(old)
        return await append(s, old, 5), await publish(s, old, 1)

    def lease_back_to(epoch):
        if hasattr(backend.server, "data"):
            backend.server.data.lease |= {"token": "ta", "epoch": str(epoch)}
            return
        with backend.server.client() as client:
            client.hset("narwhal:{contract}:lease", mapping={"token": "ta", "epoch": epoch})

    appended, published = play(scenario)
    assert appended == TopIs(f"{new}-2")
    assert published == OldEpoch(new)


def test_the_log_is_read_in_batches_to_its_end(play):
    async def scenario(s):
        epoch = await own(s)
        for n in range(2, 604):
            await append(s, epoch, n)
        first = await log(s)
        rest = await log(s, first[-1].position)
        return len(first), len(rest), await log(s, rest[-1].position)

    assert play(scenario) == (500, 103, [])


# --- document --------------------------------------------------------------------------------------


def test_a_document_comes_back_whole(play):
    document = '{"roles": {"é": "☃"}, "x": 1.5}'.encode() + b" " * 300_000

    async def scenario(s):
        epoch = await own(s)
        await append(s, epoch, 2)
        reply = await publish(s, epoch, 1, upto=LogPosition(epoch, 2), document=document)
        return epoch, reply, await s.handoff.load(timeout_s=S), await s.lease.peek(timeout_s=S)

    epoch, reply, stored, view = play(scenario)
    assert reply == Published(f"{epoch}-3")
    assert (stored.document, stored.intact, stored.schema_version) == (document, True, 1)
    assert (stored.epoch, stored.seq, stored.upto) == (epoch, 1, LogPosition(epoch, 2))
    assert stored.inc == str(view.inc)
    assert 0 <= stored.now_ms - stored.at_ms < 60_000


def test_there_is_no_document_before_the_first_publish(play):
    async def scenario(s):
        await own(s)
        return await s.handoff.load(timeout_s=S)

    assert play(scenario) is None


def test_a_snapshot_trims_the_log_to_what_it_contains(play):
    async def scenario(s):
        epoch = await own(s)
        for n in range(2, 6):
            await append(s, epoch, n)
        await publish(s, epoch, 1, upto=LogPosition(epoch, 4))
        after = await log(s)
        return epoch, after, await append(s, epoch, 6), await append(s, epoch, 7)

    epoch, after, refused, appended = play(scenario)
    assert ids(after) == [(4, "delta"), (5, "delta"), (6, "snapshot")]
    assert after[-1].body == {"seq": 1, "upto": f"{epoch}-4"}
    assert refused == TopIs(f"{epoch}-6")
    assert appended == Appended(f"{epoch}-7")


def test_a_document_contains_an_append_that_its_owner_heard_nothing_of(play):
    async def scenario(s):
        epoch = await own(s)
        await append(s, epoch, 2)
        await publish(s, epoch, 1, upto=LogPosition(epoch, 1))
        return epoch, await s.handoff.load(timeout_s=S)

    epoch, stored = play(scenario)
    assert stored.upto == LogPosition(epoch, 2)


def test_the_stored_epoch_and_seq_never_go_back(play):
    async def scenario(s):
        first = await own(s)
        replies = [await publish(s, first, 5, document=b'{"v":5}')]
        replies += [await publish(s, first, seq) for seq in (5, 4)]
        second = await own(s, "tb", "b")
        replies.append(await publish(s, second, 1, "tb", document=b'{"v":1}'))
        return first, second, replies, await s.handoff.load(timeout_s=S)

    first, second, replies, stored = play(scenario)
    assert isinstance(replies[0], Published)
    assert replies[1:3] == [OldEpoch(first)] * 2
    assert isinstance(replies[3], Published)
    assert (stored.epoch, stored.seq, stored.document) == (second, 1, b'{"v":1}')


def test_a_snapshot_after_the_log_was_lost_stays_above_what_readers_have_seen(play, backend):
    epoch = play(own)
    backend.flush()

    async def scenario(s):
        await s.lease.renew(RenewRequest("ta", OwnerMeta("a", ""), epoch, 1, "", 5000), timeout_s=S)
        return await publish(s, epoch, 2, upto=LogPosition(epoch, 12))

    assert play(scenario) == Published(f"{epoch}-13")


def test_a_torn_document_is_told(play, backend):
    async def scenario(s):
        epoch = await own(s)
        await publish(s, epoch, 1, document=b'{"whole": true}')
        if hasattr(backend.server, "data"):
            backend.server.data.handoff["document"] = b'{"who'
        else:
            with backend.server.client() as client:
                client.hset("narwhal:{contract}:handoff", "document", '{"who')
        return await s.handoff.load(timeout_s=S)

    stored = play(scenario)
    assert stored.document == b'{"who'
    assert not stored.intact


# --- totals ----------------------------------------------------------------------------------------


def test_totals_keep_the_greater_of_each_field_and_return_all_runs(play):
    async def scenario(s):
        await s.handoff.flush_totals(
            {"r1": Counters(served=5, failed=1), "base": Counters(served=9)}, timeout_s=S
        )
        await s.handoff.flush_totals({"r2": Counters(served=1, offered=1)}, timeout_s=S)
        return await s.handoff.flush_totals({"r1": Counters(served=3, failed=2)}, timeout_s=S)

    assert play(scenario) == {
        "r1": Counters(served=5, failed=2),
        "base": Counters(served=9),
        "r2": Counters(served=1, offered=1),
    }


def test_flushing_again_changes_nothing_and_restores_what_was_lost(play, backend):
    known = {"r1": Counters(served=10**15, offered=10**15), "r2": Counters(failed=7)}
    first = play(lambda s: s.handoff.flush_totals(known, timeout_s=S))
    again = play(lambda s: s.handoff.flush_totals(known, timeout_s=S))
    backend.flush()
    after = play(lambda s: s.handoff.flush_totals(first, timeout_s=S))
    assert first == again == after == known


def test_totals_of_nothing_are_nothing(play):
    assert play(lambda s: s.handoff.flush_totals({}, timeout_s=S)) == {}


# --- feed ------------------------------------------------------------------------------------------


def test_the_feed_brings_entries_in_order_without_a_gap(play):
    async def scenario(s):
        epoch = await own(s)
        await append(s, epoch, 2)
        first = await s.feed.read(START, block_s=0)
        await s.lease.release("ta", reason="x", timeout_s=S)
        second_epoch = await own(s, "tb", "b")
        second = await s.feed.read(first.top, block_s=0.5)
        empty = await s.feed.read(second.top, block_s=0)
        return epoch, second_epoch, first, second, empty

    epoch, second_epoch, first, second, empty = play(scenario)
    assert ids(first.entries) == [(1, "acquired"), (2, "delta")]
    assert ids(second.entries) == [(3, "released"), (1, "acquired")]
    assert (first.top, second.top) == (LogPosition(epoch, 2), LogPosition(second_epoch, 1))
    assert not (first.gap or second.gap or empty.gap)
    assert empty.entries == []


def test_the_feed_wakes_when_an_entry_comes(play):
    async def scenario(s):
        epoch = await own(s)
        reading = asyncio.create_task(s.feed.read(LogPosition(epoch, 1), block_s=0.5))
        await asyncio.sleep(0)
        while not reading.done():
            reply = await append(s, epoch, 2)
            if isinstance(reply, Appended):
                break
        return await reading

    assert ids(play(scenario).entries) == [(2, "delta")]


def test_an_empty_store_is_read_to_its_end_at_once(play):
    batch = play(lambda s: s.feed.read(START, block_s=0.01))
    assert (batch.entries, batch.gap, batch.top) == ([], False, START)


def test_trimmed_entries_are_a_gap(play):
    async def scenario(s):
        epoch = await own(s)
        for n in range(2, 6):
            await append(s, epoch, n)
        await publish(s, epoch, 1, upto=LogPosition(epoch, 5))
        behind = await s.feed.read(LogPosition(epoch, 2), block_s=0)
        return behind, await s.feed.read(LogPosition(epoch, 4), block_s=0)

    behind, in_time = play(scenario)
    assert behind.gap
    assert not in_time.gap
    assert ids(in_time.entries) == [(5, "delta"), (6, "snapshot")]


def test_entries_of_the_last_owner_that_were_trimmed_are_a_gap_too(play):
    async def scenario(s):
        first = await own(s)
        await append(s, first, 2)
        second = await own(s, "tb", "b")
        await publish(s, second, 1, "tb", upto=LogPosition(second, 1))
        behind = await s.feed.read(LogPosition(first, 1), block_s=0)
        return behind, await s.feed.read(LogPosition(first, 2), block_s=0)

    behind, in_time = play(scenario)
    assert behind.gap
    assert not in_time.gap


def test_an_emptied_server_is_a_gap(play, backend):
    async def scenario(s):
        epoch = await own(s)
        before = await s.feed.read(START, block_s=0)
        backend.flush()
        return before, await s.feed.read(LogPosition(epoch, 1), block_s=0.01)

    before, after = play(scenario)
    assert not before.gap
    assert after.gap


def test_another_incarnation_is_a_gap(play, backend):
    async def scenario(s):
        await own(s)
        before = await s.feed.read(START, block_s=0)
        backend.save()
        backend.roll_back()
        try:
            after = await s.feed.read(before.top, block_s=0)
        except StoreUnreachable:  # the old socket ends with the old server
            after = await s.feed.read(before.top, block_s=0)
        return before, after, await s.feed.read(before.top, block_s=0)

    before, after, later = play(scenario)
    assert after.inc != before.inc
    assert (before.gap, after.gap, later.gap) == (False, True, False)


# --- registry --------------------------------------------------------------------------------------


def entry(router_id, run="r1", **more):
    return RouterEntry(router_id, run, "standby", f"http://{router_id}:1", **more)


def test_an_announced_router_is_seen_with_all_it_told(play):
    told = entry(
        "a:8000",
        control_url="http://a:9",
        epoch=7,
        mirror_epoch=6,
        mirror_n=3,
        mirror_age_s=0.125,
        resident=4,
        ready_to_take=True,
        drift=("config", "version"),
        version="1.0",
        config_digest="ab",
        voters="0123456789abcdef",
        process=ProcessMark("host", "machine", "boot", "pid:[1]", 12, "99"),
    )

    async def scenario(s):
        await s.registry.announce(told, timeout_s=S)
        return await s.registry.routers(timeout_s=S)

    (seen,) = play(scenario)
    assert abs(seen.seen_ms - time.time() * 1000) < 60_000
    assert seen == RouterEntry(
        **{name: getattr(told, name) for name in told.__slots__} | {"seen_ms": seen.seen_ms}
    )


def test_routers_are_listed_longest_unseen_first(play):
    async def scenario(s):
        for name in ("b", "a", "b"):
            await s.registry.announce(entry(name), timeout_s=S)
            await asyncio.sleep(0.003)
        return [seen.router_id for seen in await s.registry.routers(timeout_s=S)]

    assert play(scenario) == ["a", "b"]


def test_a_router_withdraws_only_its_own_run(play):
    async def scenario(s):
        await s.registry.announce(entry("a", run="r2"), timeout_s=S)
        await s.registry.withdraw("a", "r1", timeout_s=S)
        kept = await s.registry.routers(timeout_s=S)
        await s.registry.withdraw("a", "r2", timeout_s=S)
        await s.registry.withdraw("a", "r2", timeout_s=S)
        return [seen.run for seen in kept], await s.registry.routers(timeout_s=S)

    assert play(scenario) == (["r2"], [])


def test_a_live_entry_of_another_run_is_not_overwritten(play):
    async def scenario(s):
        said = [await s.registry.announce(entry("a", run=run), timeout_s=S) for run in ("r1", "r2", "r1")]
        first = [seen.run for seen in await s.registry.routers(timeout_s=S)]
        await s.registry.withdraw("a", "r1", timeout_s=S)
        said.append(await s.registry.announce(entry("a", run="r2"), timeout_s=S))
        return said, first, [seen.run for seen in await s.registry.routers(timeout_s=S)]

    assert play(scenario) == ([True, False, True, True], ["r1"], ["r2"])


def test_an_entry_ends_after_15_seconds(play, backend):
    play(lambda s: s.registry.announce(entry("a"), timeout_s=S))
    if hasattr(backend.server, "data"):
        backend.server.step_clock(16)
    else:
        with backend.server.client() as client:
            key = "narwhal:{contract}:router:a"
            assert 10_000 < client.pttl(key) <= 15_000
            client.pexpire(key, 1)
            backend.server.wait_until(lambda c: not c.exists(key))
    assert play(lambda s: s.registry.routers(timeout_s=S)) == []


def test_an_entry_from_before_the_clock_went_back_counts_for_nothing_until_it_is_told_anew(play, backend):
    """Its time to live ends by the same clock, so a dead router would be there for as long as the step."""
    play(lambda s: s.registry.announce(entry("dead"), timeout_s=S))
    play(lambda s: s.registry.announce(entry("alive"), timeout_s=S))
    if hasattr(backend.server, "data"):
        backend.server.step_clock(-600)
    else:
        with backend.server.client() as client:
            for name in ("dead", "alive"):
                client.hset(
                    f"narwhal:{{contract}}:router:{name}", "seen_ms", str(int(time.time() + 600) * 1000)
                )

    async def scenario(s):
        before = await s.registry.routers(timeout_s=S)
        await s.registry.announce(entry("alive"), timeout_s=S)
        after = [seen.router_id for seen in await s.registry.routers(timeout_s=S)]
        return before, after, (await s.registry.entry("dead", timeout_s=S)).router_id

    found = play(scenario)
    if hasattr(backend.server, "data"):
        backend.server.step_clock(600)  # others use it too
    assert found == ([], ["alive"], "dead"), "whose ID it is stays known"


@pytest.mark.parametrize("name", ["a", "rühr:1"])
def test_names_come_back(play, name):
    async def scenario(s):
        await s.registry.announce(entry(name), timeout_s=S)
        return [seen.router_id for seen in await s.registry.routers(timeout_s=S)]

    assert play(scenario) == [name]


def test_a_delta_with_text_that_is_no_unicode_is_appended_and_read(play):
    async def scenario(s):
        epoch = await own(s)
        appended = await append(s, epoch, 2, why="tells \ud800", big=2**70)
        return appended, await log(s, LogPosition(epoch, 1))

    appended, (entry,) = play(scenario)
    assert isinstance(appended, Appended)
    assert entry.body == {"why": "tells \\ud800", "big": hex(2**70)}
