"""Fail-safe mode at the owner: asks the other voters while the store is silent (`narwhal.policy.pledge`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from narwhal.clock import Clock
from narwhal.model.handover import PeerReady, PledgeAnswer, PledgeQuestion
from narwhal.model.lease import holder_of
from narwhal.model.store_call import RouterEntry
from narwhal.policy.intents import AskPledges, Pledged
from narwhal.policy.unlikeness import voters_digest
from narwhal.ports import Peers

log = logging.getLogger("narwhal.cluster")

_SHOWN = 4
"""Routers named in one line."""
OUTAGE_OVER_S = 10.0
"""Without a question for so long the next one is of another outage, told anew."""
TOLD_AT_ONCE = 4
TOLD_EVERY_S = 10.0
"""An outage whose answers go to and fro is told by its first changes, then by a line every so often."""


class NoPeers:
    """`ports.Peers` of a router that knows no others."""

    async def ready(self, url: str, *, timeout_s: float) -> PeerReady | None:
        return None

    async def pledge(self, url: str, question: PledgeQuestion, *, timeout_s: float) -> PledgeAnswer | None:
        return None

    async def aclose(self) -> None:
        """Nothing is held."""


class AddressBook:
    """Where routers listen for orders, as the registry last said: it is asked when the store is down.

    Filled on the main loop, read on the keeper's: values swapped whole. Addresses of voters only, so bounded.
    """

    def __init__(self, voters: Iterable[str]) -> None:
        self._voters = frozenset(voters)
        self._urls: Mapping[str, str] = {}
        self._digest = voters_digest(self._voters)
        self.unlike: tuple[str, ...] = ()
        """Routers that were told other voters, as last read: none of them is bound by a pledge of ours."""

    def learn(self, entries: Sequence[RouterEntry]) -> None:
        """Keeps the addresses of routers that are not among `entries` any more."""
        self.unlike = tuple(one.router_id for one in entries if one.voters != self._digest)
        told = {one.router_id: one.control_url or one.url for one in entries if one.router_id in self._voters}
        if told.items() - self._urls.items():
            self._urls = {**self._urls, **told}

    def url(self, router_id: str) -> str:
        """ "" where it was never told."""
        return self._urls.get(router_id, "")


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, for how long, and with what. `draw` gives a fresh text for each question."""

    me: str
    ttl_s: float
    peers: Peers
    clock: Clock
    draw: Callable[[], str]


class PledgeRounds:
    """On the keeper's loop."""

    def __init__(self, asker: Asker, voters: Iterable[str], *, book: AddressBook) -> None:
        self._asker = asker
        self._others = tuple(sorted(frozenset(voters) - {asker.me}))
        self._book = book
        self._told = ""
        self._lines = 0
        self._told_at = self._asked_at = 0.0

    async def ask(self, call: AskPledges, *, timeout_s: float) -> Pledged | None:
        """One question to every other voter at once; None unless all of them pledged in time.

        Nobody is asked while a known router has other voters: it may acquire whatever ours pledge.
        """
        if unlike := self._book.unlike:
            self._tell(f"other voters are named at {', '.join(unlike[:_SHOWN])}")
            return None
        holder = holder_of(self._asker.me, call.token)
        answers = await asyncio.gather(
            *(self._one(voter, call.epoch, holder=holder, timeout_s=timeout_s) for voter in self._others)
        )
        refusals = [why for why in answers if why]
        self._tell("; ".join(refusals))
        return None if refusals else Pledged()

    async def _one(self, voter: str, epoch: int, *, holder: str, timeout_s: float) -> str:
        """Why `voter` did not pledge, "" if it did."""
        asker, url = self._asker, self._book.url(voter)
        if not url:
            return f"{voter} was never seen"
        question = PledgeQuestion(voter, holder, epoch, ttl_s=asker.ttl_s, nonce=asker.draw())
        answer: PledgeAnswer | None = None
        try:
            async with asyncio.timeout(timeout_s):
                answer = await asker.peers.pledge(url, question, timeout_s=timeout_s)
        except TimeoutError:
            pass
        if answer is None:
            return f"{voter} does not answer"
        if answer.nonce != question.nonce:
            return f"{voter} answered another question"
        return "" if answer.pledged else f"{voter}: {answer.reason}"

    def _tell(self, refusals: str) -> None:
        """A line for each change between pledged and refused within one outage, but never a flood."""
        now = self._asker.clock.now()
        if now - self._asked_at > OUTAGE_OVER_S:
            self._told, self._lines = "", 0
        self._asked_at = now
        state = "refused" if refusals else "pledged"
        if state == self._told or (self._lines >= TOLD_AT_ONCE and now - self._told_at < TOLD_EVERY_S):
            return
        self._told, self._told_at, self._lines = state, now, self._lines + 1
        if refusals:
            log.warning("fail-safe: not all voters pledge: %s", refusals)
        else:
            log.warning("fail-safe: goes on by the pledges of %s", ", ".join(self._others))
