"""Orders to drain and readmit, given until they are done.

Orders may be repeated: a drain that is on answers its record, a readmission that is on is joined. So what a
takeover, a lost connection or an engine that comes up slowly cuts off is simply asked again, of whoever owns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from narwhal.cli.asking import Answer, CommandFailed, Document, NoAnswer, Order
from narwhal.cli.lifecycle.progress import Tell, progress_line
from narwhal.cli.lifecycle.routers import Routers
from narwhal.cli.lifecycle.verdict import (
    COMING,
    Targets,
    Verdict,
    absent,
    carried,
    drain_verdict,
    failed_checks,
    out_of_placement,
    past_deadline,
    readmitted,
)
from narwhal.model.maintenance import DEADLINE_S

DRAIN: Final = "/narwhal/lifecycle/drain"
READMIT: Final = "/narwhal/lifecycle/readmit"
CHECKS_S: Final = 600.0
"""An answer to a readmit comes when all checks have ended."""
POLL_S: Final = 0.5
AGAIN_S: Final = 2.0
PATIENCE_S: Final = 60.0
"""A fleet without an owner for longer is no takeover that is under way."""
SHORTEST_S: Final = 0.001
REPEATED_S: Final = 1.0
"""How much earlier the deadline of a repeated order is, so that the way to its router makes none later."""
SIDECAR_S: Final = 20.0
"""A sidecar follows its engine within this time, or never."""


class Refused(CommandFailed):
    """The router said no. `document`: what it said it with."""

    def __init__(self, why: str, document: Document | None) -> None:
        super().__init__(why)
        self.document = document


@dataclass(slots=True)
class Asking:
    """One order to one fleet. `tell` takes the progress. `lost`: an answer did not come, the order may have
    been carried out without our knowing. `not_durable`: why what was done could be lost with its router."""

    routers: Routers
    targets: Targets
    order: Order
    tell: Tell = field(repr=False)
    lost: bool = False
    not_durable: str = ""
    _ends: float | None = field(default=None, repr=False)
    """When the work's time is over, `time.monotonic`."""

    def give_time(self, deadline_s: float) -> None:
        """A drain's: its time runs from now on, however often it is ordered."""
        self._ends = time.monotonic() + deadline_s

    async def once(self) -> Document:
        """The owner's answer. Raises Refused, NoAnswer, CommandFailed."""
        return self._done(await self.routers.order(self.order))

    def _done(self, answer: Answer) -> Document:
        if answer.status != 200 or answer.document is None:
            raise Refused("; ".join((answer.why, *self._kept(answer.document))), answer.document)
        durable = answer.body.get("durable", True)
        self.not_durable = "" if durable else str(answer.body.get("durable_reason", ""))
        return self._heard(answer.document)

    def _heard(self, document: Document) -> Document:
        """The owner's document. What it lists of a wave is part of it from now on. Raises Refused where it
        does not have a target: nothing that it shows says anything about that one."""
        self.targets = self.targets.grown(document)
        if unknown := absent(self.targets, document, url=self.routers.at):
            raise Refused(unknown.sentence, document)
        return document

    async def insist(self, settled: Callable[[Document], bool] = lambda _: False) -> Document:
        """As `once`, but asks again while nobody owns, nobody answers, or the owner could not do it yet and
        what it shows is not `settled`."""
        since = time.monotonic()
        while True:
            seen = await self.routers.owners_document()
            if seen is not None and self._late() and out_of_placement(self.targets, seen):
                return self._heard(seen)
            try:
                answer = await self._answer()
                if answer.status != 503:
                    return self._done(answer)
                if answer.document is not None and settled(answer.document):
                    return answer.document
                problem, shown = answer.why, answer.document
            except NoAnswer as error:
                problem, shown = str(error), None
            self.lost = True
            if time.monotonic() - since > PATIENCE_S:
                raise Refused(f"{problem}; given up after {PATIENCE_S:g} s", shown)
            self.tell(f"{problem}; asking again")
            await asyncio.sleep(POLL_S)

    def _late(self) -> bool:
        """Of a drain that was ordered: another order would make its deadline a later one."""
        return self.lost and self._ends is not None and time.monotonic() + POLL_S > self._ends

    async def _answer(self) -> Answer:
        """Tells meanwhile what the owner's document shows. A router that another one has followed is left."""
        asked = self.routers.at
        task = asyncio.create_task(self.routers.order(self._timed()))
        try:
            while not (await asyncio.wait({task}, timeout=POLL_S))[0]:
                document = await self.routers.owners_document()
                if document is not None and not task.done():
                    self.tell(progress_line(self.targets, document))
                if document is not None and self.routers.at != asked and not task.done():
                    raise NoAnswer(f"{asked} was asked, and {self.routers.at} owns now")
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})

    def _timed(self) -> Order:
        """With what is left of a drain's time: a router counts a deadline from each order that it gets, and
        keeps the later one. An order that is repeated is under way for a while: it asks for less."""
        if self._ends is None:
            return self.order
        spare = REPEATED_S if self.lost else 0.0
        left = max(SHORTEST_S, round(self._ends - spare - time.monotonic(), 3))
        return replace(self.order, body={**self.order.body, "deadline_s": left})

    def _kept(self, document: Document | None) -> list[str]:
        """What a router that lacks targets keeps of them."""
        kept = carried(document) if document else {}
        return [kept[iid] for iid in self.targets.engines if iid in kept]

    async def look(self) -> Document:
        """The owner's document, whoever owns. Raises CommandFailed where nobody does for long, Refused where
        it does not have a target."""
        since = time.monotonic()
        while (document := await self.routers.owners_document()) is None:
            if time.monotonic() - since > PATIENCE_S:
                known = ", ".join(self.routers.known)
                raise CommandFailed(f"no router has controlled the fleet for {PATIENCE_S:g} s: {known}")
            self.tell("no router controls the fleet; looking for the owner")
            await asyncio.sleep(POLL_S)
        self.tell(progress_line(self.targets, document))
        return self._heard(document)


async def until_drained(asking: Asking) -> tuple[Verdict, Document]:
    """Orders the drain, then waits until its targets may be stopped or will not be in time."""
    await asking.routers.introduce()
    asking.give_time(float(asking.order.body.get("deadline_s", DEADLINE_S)))
    document = await asking.insist(lambda seen: bool(past_deadline(asking.targets, seen)))
    while (verdict := drain_verdict(asking.targets, document)) is None:
        await asyncio.sleep(POLL_S)
        document = await asking.look()
    return verdict, document


async def until_readmitted(asking: Asking, *, within_s: float) -> tuple[Verdict, Document]:
    """Orders the readmission again while its engines, or their sidecars, are coming up. Raises Refused."""
    await asking.routers.introduce()
    patience = _Patience(within_s)
    while True:
        try:
            return answered(asking.targets, await asking.insist())
        except Refused as refused:
            document = refused.document
            # Whoever had lost an answer and asked again is told that there is nothing to readmit.
            if asking.lost and document and readmitted(asking.targets, document):
                return answered(asking.targets, document)
            if document is None or not patience.lasts(failed_checks(asking.targets, document)):
                raise
            asking.tell(f"{refused}; it may be coming up: asking again")
            await asyncio.sleep(AGAIN_S)


def answered(targets: Targets, document: Document) -> tuple[Verdict, Document]:
    """Of an answer 200, whose document may already show what came after."""
    since = f"{targets.be('was', 'were')} readmitted, and something has happened since"
    later = Verdict(True, f"{targets.words} {since}")
    return readmitted(targets, document) or later, document


class _Patience:
    """With engines that do not answer yet: `within_s` seconds; with sidecars: `SIDECAR_S` after them."""

    def __init__(self, within_s: float) -> None:
        self._until = time.monotonic() + within_s
        self._sidecars_until = 0.0

    def lasts(self, failed: Mapping[str, str]) -> bool:
        checks, now = set(failed.values()), time.monotonic()
        if not checks or not checks <= COMING or now > self._until:
            return False
        if "health" in checks:
            self._sidecars_until = 0.0
            return True
        self._sidecars_until = self._sidecars_until or now + SIDECAR_S
        return now < self._sidecars_until
