"""The routers of one cluster as a command knows them: who owns now, and where orders go."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from dataclasses import dataclass, field
from typing import Final

from narwhal.cli.asking import (
    Answer,
    CommandFailed,
    Document,
    Order,
    followed,
    order_owner,
    router_document,
)
from narwhal.cli.told import CLUSTER, LIFECYCLE

LOOK_S: Final = 2.0
MEET_S: Final = 1.0


@dataclass(slots=True)
class Routers:
    """`at`: the router that is asked first: the named one, then whoever owned at the last look. `known`: it
    and those that it told of, where an owner is looked for when `at` owns no longer."""

    at: str
    key: str = field(default="", repr=False)
    known: list[str] = field(default_factory=list)
    met_at: float = field(default=-math.inf, repr=False)

    def __post_init__(self) -> None:
        self._learn(self.at)

    async def order(self, given: Order) -> Answer:
        """The owner's answer. Raises NoAnswer, CommandFailed."""
        answer = await order_owner(self.at, given, key=self.key)
        self._learn(answer.url)
        self.at = answer.url
        return answer

    async def introduce(self) -> None:
        """The first look: which other routers there are. Raises CommandFailed where the named one is none."""
        self.met_at = time.monotonic()
        self._take(await router_document(self.at, CLUSTER))

    async def meet(self) -> None:
        """As `introduce`, and one that tells nothing is left at that. Routers come and go while something is
        waited for, so this is asked again and again."""
        self.met_at = time.monotonic()
        with contextlib.suppress(CommandFailed):
            self._take(await router_document(self.at, CLUSTER, timeout_s=LOOK_S))

    def _take(self, cluster: Document) -> None:
        for row in cluster["routers"]:
            if url := row.get("control_url") or row["url"]:
                self._learn(self._usable(url))

    async def owners_document(self) -> Document | None:
        """The lifecycle document of the router that controls the fleet; None while none is found."""
        document = await self._document(self.at)
        if _controls(document):
            if time.monotonic() - self.met_at > MEET_S:
                await self.meet()
            return document
        others = [url for url in self.known if url != self.at]
        for url, found in zip(others, await asyncio.gather(*map(self._document, others)), strict=True):
            if _controls(found):
                self.at = url
                return found
        if document is not None:
            await self.meet()
        return None

    async def document(self) -> Document:
        """The owner's lifecycle document, else the one that the named router has (a standby's copy). Raises
        CommandFailed."""
        named = self.at
        if len(self.known) == 1:
            await self.meet()
        return await self.owners_document() or await router_document(named, LIFECYCLE)

    async def _document(self, url: str) -> Document | None:
        try:
            return await router_document(url, LIFECYCLE, timeout_s=LOOK_S)
        except CommandFailed:
            return None

    def _usable(self, url: str) -> str:
        try:
            return followed(self.at, url)
        except CommandFailed:
            return ""

    def _learn(self, url: str) -> None:
        if url and url not in self.known:
            self.known.append(url)


def _controls(document: Document | None) -> bool:
    return document is not None and bool(document["router"]["controls_fleet"])
