from __future__ import annotations

from narwhal.sim.http import Request
from narwhal.sim.stats import Stats


def request(body: bytes = b"{}") -> Request:
    return Request("POST", "/v1/completions", "", {"host": "x"}, body)


def test_only_the_last_requests_are_kept_and_all_are_counted() -> None:
    stats = Stats(2)
    for leg in ("prefill", "decode", "decode"):
        stats.saw(leg, request(), at=1.0)
    document = stats.document()
    assert [seen["leg"] for seen in document["requests"]] == ["decode", "decode"]
    assert document["legs"] == {"prefill": 1, "decode": 2}


def test_of_a_large_body_the_beginning_is_kept_and_the_size_told() -> None:
    stats = Stats(2)
    stats.saw("decode", request(b"x" * 1_000_000), at=1.0)
    (seen,) = stats.document()["requests"]
    assert (len(seen["body"]), seen["body_bytes"]) == (65536, 1_000_000)


def test_a_reset_forgets_everything() -> None:
    stats = Stats(2)
    stats.saw("decode", request(), at=1.0)
    stats.frames = 7
    stats.reset()
    assert stats.document() == Stats(2).document()
