"""Answers that no script of ours gives, and servers that hide what the lease needs."""

from __future__ import annotations

import traceback

import pytest

from narwhal.errors import StoreProtocolError
from narwhal.store import replies

HEX = b"a" * 40
HEAD = [b"OK", HEX, HEX, b"master", b"0", b"1000", b"7", b"5-2"]


@pytest.mark.parametrize(
    ("decode", "reply"),
    [
        (replies.claimed, [b"MAYBE"]),
        (replies.acquired, [b"OK"]),
        (replies.acquired, [b"OK", b"x", b"life"]),
        (replies.acquired, [b"WHAT"]),
        (replies.renewed, [b"OK"]),
        (replies.renewed, [b"OK", b"life", b"odd"]),
        (replies.renewed, [b"LOST", b"held"]),
        (replies.released, [b"GONE"]),
        (replies.appended, [b"OK", b"7"]),
        (replies.published, [b"OLD", b"x"]),
        (replies.view, [b"OK", HEX]),
        (replies.view, [*HEAD, b"state", b"owned"]),
        (replies.view, []),
    ],
)
def test_an_answer_that_cannot_be_read_names_the_script(decode, reply):
    with pytest.raises(StoreProtocolError, match="some_script gave an answer that cannot be read"):
        replies.decoded("some_script", reply, decode=decode)


@pytest.mark.parametrize(
    "head",
    [
        [b"NONE", b"", HEX, b"master", *HEAD[4:]],
        [b"NONE", HEX, b"short", b"master", *HEAD[4:]],
        [b"NONE", HEX, HEX, b"", *HEAD[4:]],
        [b"NONE", HEX, HEX, b"proxy", *HEAD[4:]],
    ],
)
def test_a_server_that_hides_its_identity_is_refused(head):
    with pytest.raises(StoreProtocolError, match="does not tell run_id, master_replid and role"):
        replies.decoded("lease_peek", head, decode=replies.view)


SECRET = "5ec4e7" * 5


@pytest.mark.parametrize(
    ("decode", "reply"),
    [
        (replies.acquired, [b"OK", b"life/" + SECRET.encode() + b":0", b"7", b"0"]),
        (replies.acquired, [b"HELD", b"r1", SECRET.encode()]),
        (replies.renewed, [b"OK", b"life/" + SECRET.encode() + b":0"]),
        (replies.renewed, [b"OK", b"life", SECRET.encode()]),
        (replies.renewed, [SECRET.encode(), b"x"]),
        (replies.view, [*HEAD, b"state", b"held", b"token", SECRET.encode()]),
    ],
)
def test_an_answer_that_cannot_be_read_shows_no_token(decode, reply):
    with pytest.raises(StoreProtocolError) as caught:
        replies.decoded("some_script", reply, decode=decode)
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown
    assert f"{len(reply) - 1} details" in shown
