"""Registry over the router scripts: who is there, advisory (cluster.md section 3)."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

import orjson

from narwhal.model.lease import MAX_EPOCH
from narwhal.model.plain_text import shown
from narwhal.model.process import ProcessMark
from narwhal.model.store_call import RouterEntry
from narwhal.store import replies
from narwhal.store.keys import Keys
from narwhal.store.numbers import whole
from narwhal.store.scripts import ScriptRunner

log = logging.getLogger("narwhal.store")
_TOLD = 64
"""Unreadable entries that are told of."""
_TEXT_CHARS = 4096
"""Of one text of an entry: the IDs of all voters is the longest."""
_MOST_SENTENCES, _SENTENCE_CHARS = 64, 1024
"""Of `drift`."""


class ScriptRegistry:
    """The port `Registry`. May share the data connection's runner with the handoff store."""

    __slots__ = ("_keys", "_runner", "_unreadable")

    def __init__(self, runner: ScriptRunner, cluster: str) -> None:
        self._runner = runner
        self._keys = Keys(cluster)
        self._unreadable: set[str] = set()

    async def announce(self, entry: RouterEntry, *, timeout_s: float) -> bool:
        keys = [*self._keys.of("router_announce"), self._keys.router(entry.router_id)]
        args = [entry.router_id, entry.run, *(word for pair in _fields(entry).items() for word in pair)]
        reply = await self._runner.run("router_announce", keys, args=args, timeout_s=timeout_s)
        return replies.decoded("router_announce", reply, decode=_accepted, keys=self._keys)

    async def withdraw(self, router_id: str, run: str, *, timeout_s: float) -> None:
        keys = [*self._keys.of("router_withdraw"), self._keys.router(router_id)]
        reply = await self._runner.run("router_withdraw", keys, args=(router_id, run), timeout_s=timeout_s)
        replies.decoded("router_withdraw", reply, decode=_accepted, keys=self._keys)

    async def routers(self, *, timeout_s: float) -> Sequence[RouterEntry]:
        """Live entries, longest unseen first. Two calls: an entry may end between them. May be empty.

        One from before the store's clock went back is none: it would outlive its router by the whole step,
        and be the newest of all. Who lives announces itself every other second.
        """
        keys = self._keys.of("router_list")
        names = (await self._runner.run("router_list", keys, timeout_s=timeout_s))[1:]
        if not names:
            return []
        now_ms, found = await self._entries([name.decode() for name in names], timeout_s=timeout_s)
        return [entry for entry in found if entry.seen_ms <= now_ms]

    async def entry(self, router_id: str, *, timeout_s: float) -> RouterEntry | None:
        """That of one router, without the list; None: there is none that lives and can be read."""
        _, found = await self._entries([router_id], timeout_s=timeout_s)
        return next(iter(found), None)

    async def _entries(self, names: Sequence[str], *, timeout_s: float) -> tuple[int, list[RouterEntry]]:
        """The store's time, and what is left of them."""
        keys = [self._keys.router(name) for name in names]
        _, now_ms, *found = await self._runner.run("router_read", keys, timeout_s=timeout_s)
        told = zip(names, found, strict=True)
        read = [self._read(name, text) for name, text in told if text not in (b"{}", b"[]")]
        return int(now_ms), [entry for entry in read if entry is not None]

    def _read(self, router_id: str, text: bytes) -> RouterEntry | None:
        """None: this one cannot be read. The others can: it is left out, and told once."""
        try:
            entry = _entry(router_id, orjson.loads(text))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            if router_id not in self._unreadable and len(self._unreadable) < _TOLD:
                self._unreadable.add(router_id)
                log.warning("the entry router:%s cannot be read and is left out: %r", router_id, error)
            return None
        self._unreadable.discard(router_id)
        return entry

    async def put_claim(self, router_id: str, *, epoch: int, reason: str, timeout_s: float) -> bool:
        claim = orjson.dumps({"epoch": epoch, "reason": reason}) if reason else b""
        keys = self._keys.of("claim_put")
        reply = await self._runner.run("claim_put", keys, args=(router_id, epoch, claim), timeout_s=timeout_s)
        return replies.decoded("claim_put", reply, decode=replies.changed, keys=self._keys)

    async def aclose(self) -> None:
        await self._runner.aclose()


def _accepted(status: str, _details: list[str]) -> bool:
    """OTHER: the ID is another run's, and nothing was written or deleted."""
    return {"OK": True, "OTHER": False}[status]


def _fields(entry: RouterEntry) -> dict[str, str]:
    age = "" if entry.mirror_age_s is None else f"{entry.mirror_age_s:.3f}"
    return {
        "role": entry.role,
        "url": entry.url,
        "control_url": entry.control_url,
        "epoch": str(entry.epoch),
        "mirror_epoch": str(entry.mirror_epoch),
        "mirror_n": str(entry.mirror_n),
        "mirror_age_s": age,
        "resident": str(entry.resident),
        "ready_to_take": str(int(entry.ready_to_take)),
        "drift": orjson.dumps(entry.drift).decode(),
        "version": entry.version,
        "config_digest": entry.config_digest,
        "contract_digest": entry.contract_digest,
        "section_digests": orjson.dumps(dict(entry.section_digests)).decode(),
        "voters": entry.voters,
        "schema_version": str(entry.schema_version),
        **entry.process.record(),
    }


def _entry(router_id: str, fields: Mapping[str, str]) -> RouterEntry:
    """Raises KeyError, ValueError or TypeError."""
    drift = orjson.loads(fields.get("drift") or "[]")
    if not isinstance(drift, list):
        raise TypeError(f"drift is no list: {drift!r:.80}")
    section_digests = _texts(fields.get("section_digests") or "{}")
    # Anybody who reaches the store writes there: what is kept goes into documents, records and logs.
    fields = {name: shown(text, most=_TEXT_CHARS) for name, text in fields.items()}
    return RouterEntry(
        router_id=shown(router_id),
        run=fields["run"],
        role=fields["role"],
        url=fields["url"],
        control_url=fields.get("control_url", ""),
        epoch=whole(fields.get("epoch", "0"), most=MAX_EPOCH),
        mirror_epoch=whole(fields.get("mirror_epoch", "0"), most=MAX_EPOCH),
        mirror_n=whole(fields.get("mirror_n", "0")),
        mirror_age_s=_seconds(fields.get("mirror_age_s", "")),
        resident=whole(fields.get("resident", "0")),
        ready_to_take=fields.get("ready_to_take") == "1",
        drift=tuple(shown(str(sentence), most=_SENTENCE_CHARS) for sentence in drift[:_MOST_SENTENCES]),
        version=fields.get("version", ""),
        config_digest=fields.get("config_digest", ""),
        contract_digest=fields.get("contract_digest", ""),
        section_digests=section_digests,
        voters=fields.get("voters", ""),
        schema_version=whole(fields.get("schema_version", "0")),
        process=ProcessMark.of_record(fields),
        seen_ms=whole(fields.get("seen_ms", "0")),
    )


def _texts(text: str) -> dict[str, str]:
    """Raises ValueError or TypeError on what is no object of texts."""
    found = orjson.loads(text)
    if not isinstance(found, dict):
        raise TypeError("no object")
    return {shown(name): shown(str(value)) for name, value in found.items()}


def _seconds(text: str) -> float | None:
    """Raises ValueError on what is no time that has passed."""
    if not text:
        return None
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds >= 0.0):
        raise ValueError("no seconds")
    return seconds
