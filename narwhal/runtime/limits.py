"""File descriptors: as many as the host allows, and a word when that is too few."""

from __future__ import annotations

import resource

SPARE = 256
"""Descriptors beyond the two a request takes: store, control pool, files, listener, probes."""


def raise_open_files() -> int:
    """Raises the soft RLIMIT_NOFILE to the hard one; returns what is in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def open_files_warning(limit: int, max_connections: int) -> str:
    """A sentence with both numbers when `limit` is too low for `max_connections`, else "" ."""
    needed = 2 * max_connections + SPARE
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return ""
    return (
        f"only {limit} open files are allowed, but serving.max_connections {max_connections} "
        f"needs {needed}: raise the limit (ulimit -n, LimitNOFILE)"
    )
