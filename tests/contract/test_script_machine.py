"""The Lua scripts against their model, word by word: random operations, losses and rollbacks.

The model is the in-memory twin that the simulation drives, so what holds there holds for the scripts.
Some rules are checked beside it, so that one mistake in both would still show.
"""

from __future__ import annotations

import json

import msgpack
import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from narwhal.model.handoff import LogPosition
from narwhal.model.lease import MAX_EPOCH
from narwhal.store.keys import Keys
from narwhal.store.memory import MemoryServer
from narwhal.store.scripts import load
from tests.support.redis import KINDS, LOGIN, USER, running

KEYS = Keys("machine")
LOCAL_TIMES = ("acquired_ms", "renewed_ms", "released_ms", "prior_released_ms", "at_ms", "seen_ms")
# Above Redis's calendar, which the model does not share.
FLOOR = 3_000_000_000

NAMES = ("lease", "epoch", "handoff", "log", "claims", "totals")

tokens = st.sampled_from([f"t{n}" for n in range(4)])
# Mostly the one that the record names; of the others an old holder's late writes are made.
holders = st.sampled_from(["now", "now", "now", *(f"t{n}" for n in range(4))])
floors = st.sampled_from([FLOOR, FLOOR + 3, FLOOR + 10, MAX_EPOCH + 1])
small = st.integers(0, 6)


class BothSides:
    """One real server and its model: runs an operation on each and compares the answers."""

    def __init__(self, server):
        self.client = server.client()
        self.client.connection_pool.connection_kwargs["decode_responses"] = False
        self.router = redis.Redis(
            server.host, server.port, protocol=2, username=USER, password=LOGIN.password, socket_timeout=5
        )
        self.twin = MemoryServer(lambda: 1000.0)
        self.incs = {"real": [], "twin": []}

    def _real(self, script, keys, args):
        words = [len(keys), *keys, *args]
        return self.router.execute_command("EVAL", load(script).body, *words)

    def _new_incarnation(self):
        self.client.execute_command("DEBUG", "CHANGE-REPL-ID")
        self.twin.change_replid()
        head = self._real("lease_peek", KEYS.of("lease_peek"), ())
        self.incs["real"].append(b"/".join(head[1:3]))
        self.incs["twin"].append(self.twin.inc.encode())

    def _plain(self, words, side):
        """Words with incarnations as I0, I1... so that both sides can be compared."""
        out = []
        for word in words:
            for at, inc in enumerate(self.incs[side]):
                word = word.replace(inc, b"I%d" % at)
            out.append(word)
        return out

    def _both(self, script, *args, keys=None):
        keys = keys or KEYS.of(script)
        real = self._plain(self._real(script, keys, args), "real")
        twin = self._plain(self.twin.apply(script, keys, args=args), "twin")
        return real, twin

    def _same(self, script, *args, keys=None):
        real, twin = self._both(script, *args, keys=keys)
        assert real == twin, f"{script}{args}"
        return [word.decode() for word in real]

    def _inc(self, at):
        """The `at`-th latest incarnation as the real and the twin's text."""
        at = max(0, len(self.incs["real"]) - 1 - at)
        return self.incs["real"][at].decode(), self.incs["twin"][at].decode()

    def _with_text(self, script, before, texts, after):
        """As `_same`, with one argument that holds an incarnation and so differs."""
        real = self._plain(self._real(script, KEYS.of(script), (*before, texts[0], *after)), "real")
        twin_args = (*before, texts[1], *after)
        twin = self._plain(self.twin.apply(script, KEYS.of(script), args=twin_args), "twin")
        assert real == twin, f"{script}{before}{after}"
        return [word.decode() for word in real]

    def _told(self, life):
        """A life in plain form, back in each side's words."""
        texts = []
        for side in ("real", "twin"):
            text = life
            for at, inc in reversed(list(enumerate(self.incs[side]))):
                text = text.replace(f"I{at}/", inc.decode() + "/")
            texts.append(text)
        return texts


class Scripts(BothSides, RuleBasedStateMachine):
    """Each rule runs one operation on both and compares the answers; the invariant compares the data."""

    def __init__(self, server):
        RuleBasedStateMachine.__init__(self)
        BothSides.__init__(self, server)
        self.versions, self.lives, self.epochs = ["none:0"], ["none"], [FLOOR]
        self.saved = None

    def teardown(self):
        self.client.close()
        self.router.close()

    @initialize()
    def empty(self):
        self.client.flushall()
        self.saved = ({}, self.twin.data.copy())
        self._new_incarnation()

    # -- ownership -------------------------------------------------------------------------------

    @rule(nonce=tokens, floor=floors)
    def claim(self, nonce, floor):
        before = self.twin.data.copy()
        reply = self._same("lease_claim", "n" + nonce, floor, 5000)
        assert (reply == ["OK"]) == (not before.lease)
        self._remember()

    @rule(token=tokens, floor=floors, old=st.integers(0, 3), version=small, replicas=st.integers(0, 3))
    def acquire(self, token, floor, old, version, replicas):
        old = old // 3
        before, expected = (
            self.twin.data.copy(),
            self.versions[-1 - min(version // 2, len(self.versions) - 1)],
        )
        meta = ("owner", "r-" + token, "url", "http://x")
        reply = self._with_text(
            "lease_acquire", (token, expected), self._inc(old), (floor, 5000, replicas, *meta)
        )
        if reply[0] == "OK":
            epoch = int(reply[1])
            known = (before.epoch, int(before.lease["epoch"]), before.log_top.epoch, floor)
            assert epoch > max(*known, int(before.handoff.get("epoch", 0)))
            assert expected == f"{before.lease['token']}:{before.lease['seq']}"
            assert before.lease["token"] != token
            self.lives.append(reply[2])
            self.epochs.append(epoch)
        else:
            assert self.twin.data == before
        self._remember()

    @rule(token=tokens, floor=st.sampled_from([FLOOR, FLOOR + 10]))
    def take(self, token, floor):
        """A candidate that does everything right."""
        self.claim("m" + token, floor)
        self.acquire(token, floor, 0, 0, 1)

    @rule(step=st.integers(0, 2))
    def live(self, step):
        """An owner that does everything right, or repeats itself."""
        self.renew("now", 0, 2 + step, 0, 0)
        self.append("now", 0, step, b"x")
        self.publish("now", 0, int(self.twin.data.handoff.get("seq", 0)) + step, 0, b"y")

    @rule()
    def yield_and_live_on(self):
        """A release, then the late writes of the same token."""
        self.release("now", False, 0)
        self.live(1)

    @rule(token=holders, epoch=small, seq=small, life=small, replicas=st.integers(0, 3))
    def renew(self, token, epoch, seq, life, replicas):
        before, token = self.twin.data.copy(), self._holder(token)
        held_epoch = int(before.lease.get("epoch", 0)) if before.lease.get("token") == token else 0
        epoch = held_epoch if held_epoch and epoch < 5 else self._pick(self.epochs, epoch)
        seq += int(before.lease.get("seq", 0)) - 2 if held_epoch else 1
        texts = self._told(self._pick(self.lives, life))
        meta = (5000, replicas, "owner", "r-" + token)
        reply = self._with_text("lease_renew", (token, epoch, max(0, seq)), texts, meta)
        if reply[0] in ("OK", "REINSTATED"):
            self.lives.append(reply[1])
            assert self.twin.data.lease["state"] == "held"
        else:
            assert self.twin.data == before
        if before.lease.get("state") == "released":
            assert reply[0] == "LOST" or int(before.lease["epoch"]) < epoch
        self._remember()

    @rule(token=holders, by_version=st.booleans(), version=small)
    def release(self, token, by_version, version):
        expected = self._pick(self.versions, version) if by_version else ""
        token = expected.rpartition(":")[0] if by_version else self._holder(token)
        before = self.twin.data.copy()
        reply = self._same("lease_release", token, expected, "why", "who")
        if reply[0] == "OK" and before.lease["state"] == "held":
            assert self.twin.data.lease["seq"] == before.lease["seq"]
            assert before.log_top < self.twin.data.log_top

    @rule(version=small)
    def depose(self, version):
        expected, before = self._pick(self.versions, version), self.twin.data.copy()
        reply = self._same("lease_depose", expected, "why")
        if reply == ["CHANGED"]:
            assert self.twin.data == before
        else:
            assert self.twin.data.lease["state"] == "released"

    # -- log and document ------------------------------------------------------------------------

    @rule(token=holders, epoch=small, step=st.integers(-2, 3), body=st.binary(max_size=5))
    def append(self, token, epoch, step, body):
        top = self.twin.data.log_top
        token, epoch = self._holder(token), self._owner_epoch(self._holder(token), epoch)
        n = max(1, (top.n if top.epoch == epoch else 0) + step)
        reply = self._same("log_append", token, epoch, n, "delta", msgpack.packb(body))
        assert (reply[0] == "OK") <= (top < LogPosition(epoch, n))

    @rule(token=holders, epoch=small, seq=small, back=st.integers(-2, 3), document=st.binary(max_size=9))
    def publish(self, token, epoch, seq, back, document):
        token, epoch = self._holder(token), self._owner_epoch(self._holder(token), epoch)
        top, stored = self.twin.data.log_top, self.twin.data.handoff
        upto = LogPosition(epoch, max(0, top.n - back)) if top.epoch == epoch else LogPosition(epoch, 0)
        before = (int(stored.get("epoch", 0)), int(stored.get("seq", 0)))
        reply = self._same("handoff_publish", token, epoch, seq, str(upto), 1, 12345, document)
        after = self.twin.data.handoff
        if reply[0] == "OK":
            assert before < (int(after["epoch"]), int(after["seq"]))
        else:
            assert after == stored

    # -- the rest --------------------------------------------------------------------------------

    @rule(run=st.sampled_from(["r1", "r2", "base"]), served=small, failed=st.integers(0, 10**15))
    def flush_totals(self, run, served, failed):
        told = b'{"failed":%d,"served":%d}' % (failed, served)
        real, twin = self._both("totals_flush", run, told)
        assert _mapping(real[1:]) == _mapping(twin[1:])

    @rule(name=tokens, run=st.sampled_from(["r1", "r2"]))
    def announce(self, name, run):
        keys = [KEYS["routers"], KEYS.router(name)]
        reply = self._same("router_announce", name, run, "role", "standby", keys=keys)
        assert reply == ["OK"] or (reply[0] == "OTHER" and reply[1] != run)

    @rule(name=tokens, run=st.sampled_from(["r1", "r2"]))
    def withdraw(self, name, run):
        self._same("router_withdraw", name, run, keys=[KEYS["routers"], KEYS.router(name)])

    @rule(name=tokens)
    def somebody_claims(self, name):
        epoch = self.twin.data.lease.get("epoch", "0")
        self._same("claim_put", name, epoch, "{}")

    @rule(name=tokens, epoch=small)
    def somebody_claims_or_withdraws_late(self, name, epoch):
        claim = "{}" if epoch % 2 else ""
        reply = self._same("claim_put", name, self._pick(self.epochs, epoch), claim)
        assert claim or reply == ["OK"]

    # -- what happens to servers -----------------------------------------------------------------

    @rule()
    def empty_server(self):
        self.client.flushall()
        self.twin.flush()

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1))
    def lose_keys(self, names):
        self._lose(names)

    @rule(kept=st.sampled_from(NAMES), token=tokens)
    def one_memory_remains(self, kept, token):
        """Everything but one key is lost, and a marker is planted: who acquires has that memory alone."""
        self._lose(set(NAMES) - {kept})
        self.claim("m" + token, 0)
        self.acquire(token, FLOOR, 0, 0, 0)

    def _lose(self, names):
        self.client.delete(*(KEYS[name] for name in names))
        data = self.twin.data
        for name in names:
            setattr(data, name, 0 if name == "epoch" else [] if name == "log" else {})
        data.log_top = LogPosition() if "log" in names else data.log_top

    @rule()
    def another_incarnation(self):
        self._new_incarnation()

    @rule()
    def save(self):
        kept = {key: self.client.dump(key) for key in self.client.scan_iter()}
        self.saved = (kept, self.twin.data.copy())

    @rule()
    def roll_back(self):
        self.client.flushall()
        for key, dumped in self.saved[0].items():
            self.client.restore(key, 15_000 if b":router:" in key else 0, dumped)
        self.twin.data = self.saved[1].copy()
        self._new_incarnation()

    # -- what is stored --------------------------------------------------------------------------

    @invariant()
    def stores_the_same(self):
        if not self.incs["real"]:
            return
        real, twin = self._both("lease_peek")
        assert real[:1] + real[3:5] + real[6:8] == twin[:1] + twin[3:5] + twin[6:8]
        assert _record(real[8:]) == _record(twin[8:])
        real, twin = self._both("handoff_load")
        assert real[:2] == twin[:2]
        assert _record(real[3:]) == _record(twin[3:])
        real, twin = self._both("log_read", "0-0", "+")
        assert _entries(real[1:]) == _entries(twin[1:])
        claims = self.client.hgetall(KEYS["claims"])
        assert {name.decode() for name in claims} == set(self.twin.data.claims)

    def _remember(self):
        lease = self.twin.data.lease
        if lease and self.versions[-1] != (version := f"{lease['token']}:{lease['seq']}"):
            self.versions.append(version)

    def _holder(self, token):
        return self.twin.data.lease.get("token", "t0") if token == "now" else token

    def _owner_epoch(self, token, epoch):
        lease = self.twin.data.lease
        return (
            int(lease["epoch"])
            if epoch < 5 and lease.get("token") == token
            else self._pick(self.epochs, epoch)
        )

    @staticmethod
    def _pick(values, back):
        return values[-1 - min(back, len(values) - 1)]


def _record(words):
    fields = dict(zip(words[::2], words[1::2], strict=True))
    return {name: value for name, value in fields.items() if name.decode() not in LOCAL_TIMES}


def _mapping(words):
    return {run: json.loads(text) for run, text in zip(words[::2], words[1::2], strict=True)}


def _entries(words):
    entries = []
    for at in range(0, len(words), 3):
        entry_id, kind, body = words[at : at + 3]
        value = msgpack.unpackb(body)
        if isinstance(value, dict):
            value.pop("at_ms", None)
        entries.append((entry_id, kind, value))
    return entries


@pytest.mark.parametrize("kind", KINDS)
def test_the_scripts_do_what_their_model_does(kind, tmp_path):
    debug = {} if kind == "redis-6.2" else {"enable_debug_command": "local"}
    with running(kind, tmp_path / "machine", **debug) as server:
        run_state_machine_as_test(
            lambda: Scripts(server),
            settings=settings(
                max_examples=120,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
