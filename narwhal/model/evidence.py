"""What traffic shows about an engine (failures.md section 2)."""

from __future__ import annotations

from enum import StrEnum


class FailureClass(StrEnum):
    """Classes of leg failures; streaks are counted per engine and class."""

    CONNECTION = "connection"
    TIMEOUT = "timeout"
    STREAM = "stream"
    OVERLOAD = "overload"
    INFERENCE_STATUS = "inference_status"
    KV_HANDOFF = "kv_handoff"
