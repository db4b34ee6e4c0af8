"""An engine's error status as an exception: its error object and its Retry-After."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from narwhal.errors import EngineRefused, StaleEpoch
from narwhal.model.lease import MAX_EPOCH
from narwhal.ports import EngineReply

CONFLICT = 409
_LONGEST_WAIT_S = 3600.0


def refusal(reply: EngineReply, iid: str) -> EngineRefused:
    """For any status that is not the expected one."""
    error = _error_object(reply.body)
    epoch = stale_epoch(reply.status, error)
    if epoch is not None:
        return StaleEpoch(f"the engine knows epoch {epoch}", iid=iid, epoch=epoch, error=error)
    return EngineRefused(
        f"status {reply.status}",
        iid=iid,
        status=reply.status,
        error=error,
        retry_after_s=_retry_after_s(reply.headers.get("retry-after", "")),
    )


def raise_if_stale(reply: EngineReply, iid: str) -> None:
    """Raises StaleEpoch for a 409 `stale_epoch`; any other status is an answer."""
    if reply.status == CONFLICT and isinstance(error := refusal(reply, iid), StaleEpoch):
        raise error


def stale_epoch(status: int, error: Mapping[str, Any]) -> int | None:
    """The epoch of a 409 `stale_epoch`; None for any other answer, and for an epoch that nobody can have:
    above the greatest no owner could ever go, so a lie of that size must not become a floor."""
    epoch = error.get("epoch")
    if status != CONFLICT or error.get("code") != "stale_epoch" or type(epoch) is not int:
        return None
    return epoch if 0 < epoch < MAX_EPOCH else None


def _error_object(body: bytes) -> Mapping[str, Any]:
    """`{"error": {...}}` (vLLM since 0.9), the bare object of older ones, or nothing."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    error = document.get("error", document)
    return error if isinstance(error, dict) and isinstance(error.get("message"), str) else {}


def _retry_after_s(value: str) -> float | None:
    """Delta seconds only (RFC 9110 section 10.2.3); a date is not worth a clock comparison."""
    if value.isascii() and value.isdigit():
        return min(float(value), _LONGEST_WAIT_S)
    return None
