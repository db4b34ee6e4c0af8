"""--redis-url in its four forms, and what is refused without showing a password."""

from __future__ import annotations

import pytest

from narwhal.config.redis_url import RedisUrlProblem, parse, shown
from narwhal.model.settings import StoreAddress


@pytest.mark.parametrize(
    ("text", "address", "password"),
    [
        ("redis://h", StoreAddress(hosts=(("h", 6379),)), ""),
        ("redis://h:1/7", StoreAddress(hosts=(("h", 1),), db=7), ""),
        ("redis://:s%2Fx@h", StoreAddress(hosts=(("h", 6379),)), "s/x"),
        ("redis://:a@b@h", StoreAddress(hosts=(("h", 6379),)), "a@b"),
        ("rediss://u:p@[::1]:2/0", StoreAddress(hosts=(("::1", 2),), username="u", tls=True), "p"),
        ("unix:///run/r.sock?db=3", StoreAddress(socket_path="/run/r.sock", db=3), ""),
        ("unix://u:p@/run/r.sock", StoreAddress(socket_path="/run/r.sock", username="u"), "p"),
        (
            "redis+sentinel://u:p@a:1,b,[::1]:3/main/4",
            StoreAddress(hosts=(("a", 1), ("b", 26379), ("::1", 3)), service="main", db=4, username="u"),
            "p",
        ),
    ],
)
def test_every_form_is_read(text: str, address: StoreAddress, password: str) -> None:
    assert parse(text) == (address, password)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must begin with redis://"),
        ("h:6379", "must begin with redis://"),
        ("http://h", "must begin with redis://"),
        ("redis:/h", "must begin with redis://"),
        ("redis+cluster://h", "Redis Cluster, which is not supported"),
        ("redis://", "must name a host"),
        ("redis://h:x", "port from 1 to 65535"),
        ("redis://h:0", "port from 1 to 65535"),
        ("redis://::1", "IPv6 address in brackets"),
        ("redis://[::1", "not a URL"),
        ("redis://[::g]:1", "IPv6 address"),
        ("redis://h/main", "database by number"),
        ("redis://h?ssl=1", "no options after a ?"),
        ("redis://h/0#x", "holds a #"),
        ("redis:// h", "white space"),
        ("unix://run/r.sock", "absolute socket path"),
        ("unix://", "absolute socket path"),
        ("unix:///r?x=1", "unknown option 'x'"),
        ("redis+sentinel://a:1,b:2", "must name the service"),
        ("redis+sentinel://a:1,,b:2/m", "must name a host"),
        ("redis+sentinel:///m", "must name a host"),
        ("redis+sentinel://a/m?x", "no options after a ?"),
    ],
)
def test_a_wrong_url_is_told(text: str, words: str) -> None:
    with pytest.raises(RedisUrlProblem, match=words.replace("?", r"\?")):
        parse(text)


@pytest.mark.parametrize(
    "text", ["redis://:pa/ss@h", "redis://u:paß/ss@h", "redis://:pass@h#", "rdis://:pass@h"]
)
def test_no_message_shows_a_password(text: str) -> None:
    with pytest.raises(RedisUrlProblem) as caught:
        parse(text)
    assert "pa" not in str(caught.value).replace("space", "").replace("password", "")


@pytest.mark.parametrize(
    "text",
    [
        "redis://h:1/0",
        "rediss://[::1]:6379/2",
        "unix:///r.sock",
        "unix:///r.sock?db=1",
        "redis+sentinel://a:1,b:2/m",
    ],
)
def test_an_address_is_shown_as_it_was_given(text: str) -> None:
    assert shown(parse(text)[0]) == text


def test_a_shown_address_has_no_credentials() -> None:
    assert shown(parse("redis://u:p@h:1/0")[0]) == "redis://h:1/0"
