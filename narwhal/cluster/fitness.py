"""Who could take the lease over, from what routers tell of themselves. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from narwhal.model.control import RouterRole
from narwhal.model.store_call import RouterEntry

SILENT_MS = 6_000
"""Three announcements missed: whoever is behind the entry is taken for dead."""


def newest_ms(routers: Iterable[RouterEntry]) -> int:
    """When the store heard last of anybody, on its own clock: what `unfit` compares with."""
    return max((one.seen_ms for one in routers), default=0)


def unfit(entry: RouterEntry, newest: int) -> str:
    """Why this router could not take over, "" if it could. `newest`: when the store heard last of anybody."""
    if newest - entry.seen_ms > SILENT_MS:
        return f"router {entry.router_id} has not been heard of for over {SILENT_MS // 1000} s"
    if entry.role != RouterRole.STANDBY.value or not entry.ready_to_take:
        why = f": {'; '.join(entry.drift)}" if entry.drift else ""
        return f"router {entry.router_id} is not ready to take over{why}"
    return ""
