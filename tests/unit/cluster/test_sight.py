"""cluster/sight.py: what the log says of the store."""

from __future__ import annotations

import pytest

from narwhal.cluster.sight import StoreMeter
from narwhal.errors import StoreUnreachable


def test_a_store_that_falls_silent_is_told_once_and_so_is_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meter = StoreMeter()
    meter.answered(0.001)
    assert not caplog.messages
    for word in ("READONLY", "OOM"):
        meter.failed(StoreUnreachable(f"lease_renew: {word}"))
    meter.answered(0.001)
    meter.answered(0.001)
    assert caplog.messages == ["the store gives no answer: lease_renew: READONLY", "the store answers again"]
    assert (meter.failures, meter.reachable) == (2, True)


def test_a_store_that_never_answered_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    meter = StoreMeter()
    meter.failed(StoreUnreachable("lease_peek: refused"))
    meter.failed(StoreUnreachable("lease_peek: refused"))
    assert caplog.messages == ["the store gives no answer: lease_peek: refused"]
    assert not meter.reachable
