"""engine/target.py: the request heads that go to an engine."""

from __future__ import annotations

import ssl

import pytest

from narwhal.engine.target import Target
from narwhal.model.engine import EngineSpec, Leg
from narwhal.ports import EngineCall

TLS = ssl.create_default_context()


def target(url: str, key: str = "") -> Target:
    return Target.of(EngineSpec("e0", url), api_key=key, tls=TLS)


def call(**more: object) -> EngineCall:
    return EngineCall("e0", "POST", "/v1/completions", Leg.DECODE, "rid-1", b'{"a":1}', **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "host", "port", "header"),
    [
        ("http://10.0.0.1:8100", "10.0.0.1", 8100, "10.0.0.1:8100"),
        ("http://engine", "engine", 80, "engine"),
        ("https://engine", "engine", 443, "engine"),
        ("http://[::1]:8100", "::1", 8100, "[::1]:8100"),
    ],
)
def test_addresses(url: str, host: str, port: int, header: str) -> None:
    found = target(url)
    assert (found.host, found.port) == (host, port)
    assert f"host: {header}\r\n" in found.fixed
    assert (found.tls is not None) == url.startswith("https")


def test_a_request_carries_ours_and_nothing_else() -> None:
    request = target("http://e:1/base", "secret").request(call(traceparent="00-ab-cd-01"), "demo/7")
    head, _, body = request.partition(b"\r\n\r\n")
    assert body == b'{"a":1}'
    assert head.decode().split("\r\n") == [
        "POST /base/v1/completions HTTP/1.1",
        "host: e:1",
        "accept: */*",
        "authorization: Bearer secret",
        "x-narwhal-leg: decode",
        "x-narwhal-epoch: demo/7",
        "x-request-id: rid-1",
        "traceparent: 00-ab-cd-01",
        "content-type: application/json",
        "content-length: 7",
    ]


def test_without_a_cluster_or_a_key_their_headers_are_absent() -> None:
    request = target("http://e:1").request(call(), None)
    assert b"x-narwhal-epoch" not in request
    assert b"authorization" not in request


def test_a_head_follows_the_epoch_and_old_ones_are_dropped() -> None:
    engine = target("http://e:1")
    for epoch in range(1000):
        assert f"x-narwhal-epoch: demo/{epoch}\r\n".encode() in engine.request(call(), f"demo/{epoch}")
    assert b"x-narwhal-epoch" not in engine.request(call(), None)
    assert len(engine.heads) <= 32


@pytest.mark.parametrize("value", ["a\r\nx-evil: 1", "a\nb", "é", "\x00"])
def test_a_traceparent_that_could_break_the_head_is_left_out(value: str) -> None:
    request = target("http://e:1").request(call(traceparent=value), None)
    assert b"traceparent" not in request
    assert b"evil" not in request


def test_a_get_has_no_body_headers() -> None:
    request = target("http://e:1").request(EngineCall("e0", "GET", "/health", Leg.PROBE, "r"), None)
    assert b"content-" not in request
