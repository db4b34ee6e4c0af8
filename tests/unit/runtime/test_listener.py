"""runtime/listener.py: the date of responses without a clock that ticks for it."""

from __future__ import annotations

from narwhal.runtime.listener import DatedState


def test_every_response_has_the_date_of_its_second() -> None:
    wall = 1_700_000_000.0
    state = DatedState(lambda: wall)
    assert state.default_headers == [(b"date", b"Tue, 14 Nov 2023 22:13:20 GMT")]
    same = state.default_headers
    wall += 0.9
    assert state.default_headers is same
    wall += 0.2
    assert state.default_headers == [(b"date", b"Tue, 14 Nov 2023 22:13:21 GMT")]
