"""Instants as people read them, UTC. Others tell them: one that no calendar has is no reason to stop."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from narwhal.model.numbers import unix_time


def shown_time(seconds: Any, form: str) -> str:
    """Unix seconds by the form of `strftime`; "?" for what is no time."""
    time = unix_time(seconds)
    return "?" if time is None else datetime.fromtimestamp(time, UTC).strftime(form)
