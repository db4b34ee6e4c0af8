"""The last changes of ownership: what the log still holds, and what the live routers remember.

The log is trimmed to what a standby still needs, so older changes live in the routers' memories only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from narwhal.cli.asking import CommandFailed, router_document
from narwhal.cli.told import CLUSTER

Change = dict[str, Any]
ASK_S: Final = 2.0
LOG: Final = "log"


async def remembered(urls: Sequence[str]) -> tuple[dict[str, list[Change]], list[str]]:
    """What each router tells, by its URL; sentences about those that did not answer."""
    told: dict[str, list[Change]] = {}
    silent: list[str] = []

    async def ask(url: str) -> None:
        try:
            document = await router_document(url, CLUSTER, timeout_s=ASK_S)
        except CommandFailed as error:
            silent.append(str(error))
            return
        told[url] = document["ownership_changes"]

    await asyncio.gather(*(ask(url) for url in urls))
    return told, sorted(silent)


def merged(log: Iterable[Change], told: Mapping[str, Iterable[Change]]) -> list[Change]:
    """One row for each change, oldest first; `told_by` names the sources. The log's own words come first:
    its times are of one clock."""
    rows: dict[tuple[str, int, str], Change] = {}
    for source, changes in ((LOG, log), *sorted(told.items())):
        for change in changes:
            key = (str(change["kind"]), int(change["epoch"]), str(change["router_id"]))
            row = rows.setdefault(key, {**change, "told_by": []})
            row["reason"] = row["reason"] or change["reason"]
            if source not in row["told_by"]:
                row["told_by"].append(source)
    return sorted(rows.values(), key=_order)


_RANK: Final = {"acquired": 0, "fenced": 1, "released": 2}


def _order(change: Change) -> tuple[int, int, float]:
    """Epochs order changes of different owners; clocks of different hosts do not."""
    return int(change["epoch"]), _RANK.get(str(change["kind"]), 1), float(change["at"])
