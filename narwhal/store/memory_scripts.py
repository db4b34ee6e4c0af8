"""The scripts of `lua/` as functions over a model of one server's data.

Same names, KEYS, ARGV and reply arrays as the Lua files, so the in-memory stores decode the same
answers, and the state machine test compares both word by word. All values are text, as in Redis,
except documents and log bodies (bytes). Rules and reasons: cluster.md sections 2 to 4.
"""

from __future__ import annotations

import copy
import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgpack

from narwhal.model.handoff import LOG_START, LogPosition
from narwhal.model.lease import MAX_EPOCH
from narwhal.store.numbers import MOST_REPLICAS
from narwhal.store.replies import pairs

Word = str | bytes | int
LOG_LENGTH = 10_000
LOG_READ_LIMIT = 500
ROUTER_TTL_MS = 15_000
ROUTER_FORGET_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Call:
    """KEYS, ARGV, and what a script reads from INFO and TIME."""

    keys: Sequence[str]
    args: Sequence[str]
    run_id: str
    replid: str
    role: str
    replicas: int
    now_ms: int

    @property
    def inc(self) -> str:
        return f"{self.run_id}/{self.replid}"


def _whole(text: object, most: int = 2 * MAX_EPOCH) -> int:
    """What no router wrote counts as 0."""
    digits = isinstance(text, str) and text.isascii() and text.isdigit()
    number = int(text) if digits and isinstance(text, str) else 0
    return number if number <= most else 0


@dataclass(slots=True)
class Data:
    """Everything stored under one cluster's prefix. None or empty = the key does not exist."""

    lease: dict[str, str] = field(default_factory=dict)
    epoch: int = 0
    handoff: dict[str, str | bytes] = field(default_factory=dict)
    totals: dict[str, str] = field(default_factory=dict)
    log: list[tuple[LogPosition, str, bytes]] = field(default_factory=list)
    log_top: LogPosition = LOG_START
    claims: dict[str, str] = field(default_factory=dict)
    routers: dict[str, int] = field(default_factory=dict)
    entries: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    """router key -> (expires at ms, fields)."""

    def copy(self) -> Data:
        return copy.deepcopy(self)

    def add(self, position: LogPosition, kind: str, *, body: bytes) -> str:
        self.log.append((position, kind, body))
        self.log_top = position
        del self.log[:-LOG_LENGTH]
        return str(position)

    def holds(self, token: str, epoch: str) -> bool:
        lease = self.lease
        return lease.get("state") == "held" and lease["token"] == token and lease["epoch"] == epoch

    @property
    def known_epoch(self) -> int:
        """What the `epoch` key is worth: 0 where it holds none."""
        return _whole(str(self.epoch), MAX_EPOCH)

    def lost(self) -> list[Word]:
        return [
            "LOST",
            self.lease.get("state", ""),
            self.lease.get("epoch", "0"),
            self.lease.get("owner", ""),
        ]


def _flat(fields: dict[str, str]) -> list[Word]:
    return [word for pair in fields.items() for word in pair]


def lease_peek(data: Data, call: Call) -> list[Word]:
    head: list[Word] = [call.run_id, call.replid, call.role, call.replicas, call.now_ms]
    head += [data.epoch, str(data.log_top)]
    return ["OK" if data.lease else "NONE", *head, *_flat(data.lease)]


def lease_claim(data: Data, call: Call) -> list[Word]:
    nonce, floor, ttl_ms = call.args
    if data.lease and data.lease["state"] != "vacant":
        return ["EXISTS"]
    if MAX_EPOCH >= int(floor) > data.known_epoch:
        data.epoch = int(floor)
    if data.lease:
        return ["EXISTS"]
    data.lease = {"state": "vacant", "token": nonce, "seq": "0", "epoch": "0", "ttl_ms": ttl_ms}
    data.lease |= {"inc": call.inc, "sure": "0", "replicas": "0", "acquired_ms": str(call.now_ms)}
    return ["OK"]


def lease_acquire(data: Data, call: Call) -> list[Word]:
    token, expected, inc, floor, ttl_ms, replicas = call.args[:6]
    lease = data.lease
    if int(floor) > MAX_EPOCH:
        return ["BADFLOOR"]
    if not lease:
        return ["NONE"]
    if lease["state"] == "held" and lease["token"] == token:
        return ["AGAIN", lease["epoch"], lease["life"], lease["replicas"]]
    if inc != call.inc:
        return ["NEWSERVER", call.inc]
    if lease["token"] == token or expected != f"{lease['token']}:{lease['seq']}":
        return ["HELD", lease.get("owner", ""), lease["epoch"]]
    stored = (_whole(lease["epoch"], MAX_EPOCH), _whole(data.handoff.get("epoch"), MAX_EPOCH))
    epoch = max(data.known_epoch, *stored, data.log_top.epoch, int(floor), call.now_ms // 1000) + 1
    if epoch > MAX_EPOCH:
        return ["BADFLOOR"]
    life = f"{call.inc}/{token}:0"
    before = data.log_top
    most = max(int(replicas), _whole(lease["replicas"], MOST_REPLICAS), call.replicas)
    data.lease = _held(call, token=token, seq="0", epoch=str(epoch), ttl_ms=ttl_ms)
    data.lease |= {"life": life, "sure": "1", "replicas": str(most), **pairs(call.args[6:])}
    if lease["state"] == "released":
        data.lease |= {"prior_epoch": lease["epoch"], "prior_reason": lease.get("reason", "")}
        data.lease |= {"prior_owner": lease.get("owner", "")}
        data.lease |= {"prior_released_ms": lease.get("released_ms", "0")}
    data.epoch = epoch
    data.claims = {}
    body = {
        "owner": data.lease["owner"],
        "url": data.lease["url"],
        "after": str(before),
        "at_ms": call.now_ms,
    }
    data.add(LogPosition(epoch, 1), "acquired", body=_packed(body))
    return ["OK", epoch, life, most]


def _held(call: Call, *, token: str, seq: str, epoch: str, ttl_ms: str) -> dict[str, str]:
    now = str(call.now_ms)
    record = {"state": "held", "token": token, "seq": seq, "epoch": epoch, "ttl_ms": ttl_ms}
    return record | {"inc": call.inc, "acquired_ms": now, "renewed_ms": now}


def lease_renew(data: Data, call: Call) -> list[Word]:
    token, epoch, seq, last_life, ttl_ms, replicas = call.args[:6]
    lease = data.lease
    most = str(max(int(replicas), _whole(lease.get("replicas"), MOST_REPLICAS), call.replicas))
    if data.holds(token, epoch):
        if int(seq) <= _whole(lease["seq"]):
            return ["STALE"]
        life, sure = lease["life"], last_life == lease["life"]
        if lease["inc"] != call.inc:
            life, sure = f"{call.inc}/{token}:{seq}", False
        lease |= {"seq": seq, "inc": call.inc, "life": life, "sure": str(int(sure)), "ttl_ms": ttl_ms}
        lease |= {"replicas": most, "renewed_ms": str(call.now_ms)}
        return ["OK", life, most, *_flat(data.claims)]
    stored_epoch = _whole(lease.get("epoch"), MAX_EPOCH)
    if not lease or lease["state"] == "vacant" or stored_epoch < int(epoch):
        life = f"{call.inc}/{token}:{seq}"
        data.lease = _held(call, token=token, seq=seq, epoch=epoch, ttl_ms=ttl_ms)
        data.lease |= {"life": life, "sure": "0", "replicas": most, **pairs(call.args[6:])}
        data.epoch = max(data.known_epoch, int(epoch))
        return ["REINSTATED", life, most]
    return ["LOST", lease["state"], stored_epoch, lease.get("owner", "")]


def lease_release(data: Data, call: Call) -> list[Word]:
    token, version, reason, successor = call.args
    lease = data.lease
    if lease.get("token") != token or version not in ("", f"{token}:{lease['seq']}"):
        return data.lost()
    if lease["state"] == "released":
        return ["OK"]
    if lease["state"] != "held":
        return data.lost()
    lease |= {"state": "released", "reason": reason, "successor": successor}
    lease["released_ms"] = str(call.now_ms)
    _log_release(data, call)
    return ["OK"]


def _log_release(data: Data, call: Call) -> None:
    lease = data.lease
    top = max(data.log_top, LogPosition(_whole(lease["epoch"], MAX_EPOCH), 0))
    body: dict[str, object] = {name: lease[name] for name in ("owner", "reason", "successor")}
    body["at_ms"] = call.now_ms
    data.add(LogPosition(top.epoch, top.n + 1), "released", body=_packed(body))


def lease_depose(data: Data, call: Call) -> list[Word]:
    expected, reason = call.args
    lease = data.lease
    if not lease or lease["state"] == "vacant" or expected != f"{lease['token']}:{lease['seq']}":
        return ["CHANGED"]
    held = lease["state"] == "held"
    lease |= {"state": "released", "sure": "0", "inc": call.inc, "reason": reason, "successor": ""}
    lease |= {"replicas": str(call.replicas), "deposed": "1"}
    if held:
        lease["released_ms"] = str(call.now_ms)
        _log_release(data, call)
    return ["OK"]


def claim_put(data: Data, call: Call) -> list[Word]:
    router_id, epoch, claim = call.args
    if not claim:
        data.claims.pop(router_id, None)
        return ["OK"]
    if data.lease.get("state") != "held" or data.lease["epoch"] != epoch:
        return ["CHANGED"]
    data.claims[router_id] = claim if isinstance(claim, str) else claim.decode()
    return ["OK"]


def _packed(body: dict[str, object]) -> bytes:
    packed: bytes = msgpack.packb(body)
    return packed


def log_append(data: Data, call: Call) -> list[Word]:
    token, epoch, n, kind, body = call.args
    if not data.holds(token, epoch):
        return data.lost()
    position = LogPosition(int(epoch), int(n))
    if position <= data.log_top:
        return ["TOP", str(data.log_top)]
    return ["OK", data.add(position, kind, body=_bytes(body))]


def log_read(data: Data, call: Call) -> list[Word]:
    after, through = LogPosition.parse(call.args[0]), call.args[1]
    found = data.log[bisect_right(data.log, after, key=lambda entry: entry[0]) :][:LOG_READ_LIMIT]
    kept = [e for e in found if through == "+" or e[0] <= LogPosition.parse(through)]
    return ["OK", *(word for position, kind, body in kept for word in (str(position), kind, body))]


def handoff_publish(data: Data, call: Call) -> list[Word]:
    token, epoch, seq, upto, schema_version, crc32, document = call.args
    if not data.holds(token, epoch):
        return data.lost()
    stored = (_whole(data.handoff.get("epoch"), MAX_EPOCH), _whole(data.handoff.get("seq")))
    if max(stored[0], data.log_top.epoch) > int(epoch) or stored >= (int(epoch), int(seq)):
        return ["OLD", max(stored[0], data.log_top.epoch)]
    told = LogPosition.parse(upto)
    top = max(data.log_top, told, LogPosition(int(epoch), 0))
    data.handoff = {"epoch": epoch, "seq": seq, "upto": str(top), "at_ms": str(call.now_ms)}
    data.handoff |= {"schema_version": schema_version, "crc32": crc32, "document": _bytes(document)}
    data.handoff["inc"] = call.inc
    body = msgpack.packb({"seq": int(seq), "upto": upto})
    added = data.add(LogPosition(top.epoch, top.n + 1), "snapshot", body=body)
    data.log = [entry for entry in data.log if told <= entry[0]]
    return ["OK", added]


def handoff_load(data: Data, call: Call) -> list[Word]:
    words = [word for pair in data.handoff.items() for word in pair]
    return ["OK" if data.handoff else "NONE", call.inc, call.now_ms, *words]


def totals_flush(data: Data, call: Call) -> list[Word]:
    for run, told in pairs(call.args).items():
        kept = _counts(data.totals.get(run, "{}"))
        for name, count in _counts(told).items():
            kept[name] = max(kept.get(name, 0), count)
        data.totals[run] = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    return ["OK", *_flat(data.totals)]


def _counts(text: str) -> dict[str, int]:
    """What no router wrote counts for nothing."""
    try:
        fields = json.loads(text)
    except ValueError:
        return {}
    found = fields.items() if isinstance(fields, dict) else ()
    return {name: count for name, count in found if type(count) is int and 0 <= count <= 2 * MAX_EPOCH}


def router_announce(data: Data, call: Call) -> list[Word]:
    (router_id, run), now = call.args[:2], call.now_ms
    held = _entry(data, now, key=call.keys[1])
    if held and held["run"] != run:
        return ["OTHER", held["run"]]
    data.routers[router_id] = now
    data.routers = {name: seen for name, seen in data.routers.items() if seen >= now - ROUTER_FORGET_MS}
    fields = pairs(call.args[2:]) | {"run": run, "seen_ms": str(now)}
    data.entries[call.keys[1]] = (now + ROUTER_TTL_MS, fields)
    return ["OK"]


def router_withdraw(data: Data, call: Call) -> list[Word]:
    router_id, run = call.args
    fields = _entry(data, call.now_ms, key=call.keys[1])
    if fields and fields["run"] != run:
        return ["OTHER", fields["run"]]
    data.entries.pop(call.keys[1], None)
    data.routers.pop(router_id, None)
    return ["OK"]


def router_list(data: Data, call: Call) -> list[Word]:
    by_seen = sorted(data.routers, key=lambda name: (data.routers[name], name))
    return ["OK", *by_seen]


def router_read(data: Data, call: Call) -> list[Word]:
    entries = (json.dumps(_entry(data, call.now_ms, key=key)) for key in call.keys)
    return ["OK", str(call.now_ms), *entries]


def _entry(data: Data, now_ms: int, *, key: str) -> dict[str, str]:
    expires_ms, fields = data.entries.get(key, (0, {}))
    return fields if expires_ms > now_ms else {}


def _bytes(word: str | bytes) -> bytes:
    return word if isinstance(word, bytes) else word.encode()


MemoryScript = Callable[[Data, Call], list[Word]]
SCRIPTS: dict[str, MemoryScript] = {
    script.__name__: script
    for script in (
        *(lease_peek, lease_claim, lease_acquire, lease_renew, lease_release, lease_depose, claim_put),
        *(log_append, log_read, handoff_publish, handoff_load, totals_flush),
        *(router_announce, router_withdraw, router_list, router_read),
    )
}
