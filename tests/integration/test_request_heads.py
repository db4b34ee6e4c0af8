"""Request heads and framing as RFC 9112 has them: what could be read in two ways is read by nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_bad_input import refused
from tests.support.engines import engine_process
from tests.support.router import fleet_document, router_process
from tests.support.wire import Wire, play


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with engine_process(2, "--prefill", "0", "--interval", "0") as engines:
        fleet = fleet_document(engines.engines)
        with router_process(Path(tmp_path_factory.mktemp("router")), fleet) as router:
            yield router.url
            router.becomes_idle()
            assert "Traceback" not in router.process.output, router.process.output


HI = b"content-length: 23\r\n\r\n" + b'{"prompt":"x"         }'
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
HI_CHUNKED = b'17\r\n{"prompt":"x"         }\r\n0\r\n\r\n'


def head(fields: bytes = HI, *, line: bytes = b"POST /v1/completions HTTP/1.1", host: bytes = b"t") -> bytes:
    return line + b"\r\nhost: " + host + b"\r\n" + fields


def line(text: str, fields: bytes = HI) -> bytes:
    return head(fields, line=text.encode("latin-1"))


HEADS: dict[str, tuple[int, bytes]] = {
    # Host: RFC 9112, section 3.2.
    "one host": (200, head()),
    "an empty host": (200, head(host=b"")),
    "an IPv6 host": (200, head(host=b"[::1]:80")),
    "no host": (400, b"POST /v1/completions HTTP/1.1\r\n" + HI),
    "two hosts": (400, head(b"host: t\r\n" + HI)),
    "two other hosts": (400, head(b"Host: u\r\n" + HI)),
    "a host with a blank": (400, head(host=b"a b")),
    "a host with a path": (400, head(host=b"a/b")),
    "a host with a user": (400, head(host=b"u@a")),
    "two hosts in one line": (400, head(host=b"a, b")),
    "HTTP/1.0 without host": (200, b"POST /v1/completions HTTP/1.0\r\n" + HI),
    "HTTP/1.0 with two hosts": (400, line("POST /v1/completions HTTP/1.0", b"host: u\r\n" + HI)),
    # Versions: section 2.3.
    "HTTP/2.0": (505, line("POST /v1/completions HTTP/2.0")),
    "HTTP/0.9": (505, line("POST /v1/completions HTTP/0.9")),
    "no version": (505, b"GET /v1/models\r\n\r\n"),
    "HTTP/1.2": (400, line("POST /v1/completions HTTP/1.2")),
    "the preface of HTTP/2": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    # Targets: section 3.2.
    "a whole URL": (200, line("POST http://elsewhere/v1/completions HTTP/1.1")),
    "a query": (200, line("POST /v1/completions?a=b HTTP/1.1")),
    "a fragment": (400, line("POST /v1/completions#a HTTP/1.1")),
    "OPTIONS of all": (404, line("OPTIONS * HTTP/1.1", b"\r\n")),
    "POST to all": (400, line("POST * HTTP/1.1")),
    "CONNECT to a host": (400, line("CONNECT t:80 HTTP/1.1", b"\r\n\x16\x03\x01")),
    "CONNECT to a path": (400, line("CONNECT /v1/completions HTTP/1.1", b"\r\n\x16\x03\x01")),
    "no path": (400, line("GET models HTTP/1.1", b"\r\n")),
    "a blank in the target": (400, line("POST /v1/com pletions HTTP/1.1")),
    "a control character in the target": (400, line("GET /v1/\x01 HTTP/1.1", b"\r\n")),
    "no ASCII in the target": (400, line("GET /v1/\xe9 HTTP/1.1", b"\r\n")),
    "a method in lower case": (400, line("post /v1/completions HTTP/1.1")),
    # Lines: sections 2.2, 5.1 and 5.2.
    "empty lines before": (200, b"\r\n\r\n" + head()),
    "a folded line": (400, head(b"x-a: b\r\n c\r\n" + HI)),
    "a folded first line": (400, head(b" x: y\r\n" + HI)),
    "a folded coding": (400, head(b"transfer-encoding:\r\n chunked\r\n\r\n" + HI_CHUNKED)),
    "a bare CR in a value": (400, head(b"x-a: b\rc: d\r\n" + HI)),
    "a bare CR behind a value": (400, head(b"x-a: b\r\r\n" + HI)),
    "a bare CR behind the request line": (400, b"POST /v1/completions HTTP/1.1\rhost: t\r\n" + HI),
    "a blank before the colon": (400, head(b"x-a : b\r\n" + HI)),
    "a tab before the colon": (400, head(b"x-a\t: b\r\n" + HI)),
    "a blank before the colon of the length": (400, head(HI.replace(b":", b" :", 1))),
    "no colon": (400, head(b"x-a\r\n" + HI)),
    "no name": (400, head(b": b\r\n" + HI)),
    "a name that is no token": (400, head(b"x(a: b\r\n" + HI)),
    "NUL": (400, head(b"x: a\0b\r\n" + HI)),
    "a control character": (400, head(b"x: a\x01b\r\n" + HI)),
    # Framing: section 6.
    "the same length twice": (400, head(b"content-length: 23\r\n" + HI)),
    "two lengths": (400, head(b"content-length: 22\r\n" + HI)),
    "two lengths in one line": (400, head(HI.replace(b"23", b"23, 23", 1))),
    "a length with a sign": (400, head(HI.replace(b"23", b"+23", 1))),
    "a negative length": (400, head(HI.replace(b"23", b"-23", 1))),
    "a hexadecimal length": (400, head(HI.replace(b"23", b"0x17", 1))),
    "no length": (400, head(HI.replace(b" 23", b"", 1))),
    "a length that overflows": (400, head(HI.replace(b"23", b"9" * 23, 1))),
    "chunks": (200, head(CHUNKED + HI_CHUNKED)),
    "chunks in capitals": (200, head(CHUNKED.replace(b"chunked", b"CHUNKED") + HI_CHUNKED)),
    "a length and chunks": (400, head(b"content-length: 23\r\n" + CHUNKED + HI_CHUNKED)),
    "chunks and a length": (400, head(CHUNKED[:-2] + b"content-length: 23\r\n\r\n" + HI_CHUNKED)),
    "chunks twice": (400, head(CHUNKED[:-2] + CHUNKED + HI_CHUNKED)),
    "chunks of chunks": (400, head(b"transfer-encoding: chunked, chunked\r\n\r\n" + HI_CHUNKED)),
    "an unknown coding": (400, head(b"transfer-encoding: gzip\r\n\r\n" + HI_CHUNKED)),
    "an almost known coding": (400, head(b"transfer-encoding: xchunked\r\n\r\n" + HI_CHUNKED)),
    "identity": (400, head(b"transfer-encoding: identity\r\n" + HI)),
    "a coding and chunks": (501, head(b"transfer-encoding: gzip, chunked\r\n\r\n" + HI_CHUNKED)),
    "chunks and a coding": (400, head(b"transfer-encoding: chunked, gzip\r\n\r\n" + HI_CHUNKED)),
    "chunks in HTTP/1.0": (400, line("POST /v1/completions HTTP/1.0", CHUNKED + HI_CHUNKED)),
    # Chunks: section 7.1.
    "a chunk extension": (200, head(CHUNKED + HI_CHUNKED.replace(b"17", b"17;a=b", 1))),
    "a chunk extension without end": (431, head(CHUNKED + b"17;a=" + b"b" * 200_000)),
    "chunk extensions without end": (431, head(CHUNKED + (b"1;a=" + b"b" * 999 + b"\r\n \r\n") * 200)),
    "a line feed in a chunk extension": (400, head(CHUNKED + HI_CHUNKED.replace(b"17", b"17;a\n", 1))),
    "a chunk size that is no number": (400, head(CHUNKED + b"ZZ\r\n")),
    "a chunk size with a blank": (400, head(CHUNKED + HI_CHUNKED.replace(b"17", b"17 ", 1))),
    "a chunk size with a prefix": (400, head(CHUNKED + HI_CHUNKED.replace(b"17", b"0x17", 1))),
    "a chunk size that overflows": (400, head(CHUNKED + HI_CHUNKED.replace(b"17", b"f" * 17, 1))),
    "a chunk size with a bare LF": (400, head(CHUNKED + HI_CHUNKED.replace(b"17\r", b"17", 1))),
    "a chunk longer than it says": (400, head(CHUNKED + HI_CHUNKED.replace(b"17", b"16", 1))),
    "trailers": (200, head(CHUNKED + HI_CHUNKED[:-2] + b"x-a: b\r\nhost: ?\r\n\r\n")),
    "a length in the trailers": (400, head(CHUNKED + HI_CHUNKED[:-2] + b"content-length: 2\r\n\r\n")),
}


def test_heads_and_framing_are_served_or_refused_as_rfc_9112_says(url: str) -> None:
    """Refused with our envelope and a close."""

    async def one(data: bytes) -> tuple[int, str]:
        wire = await Wire.open(url)
        try:
            await wire.send(data)
            answer = await wire.answer()
            if answer.status not in (200, 404):
                refused(answer, answer.status)
                assert await wire.ended()
            return answer.status, answer.headers.get("connection", "")
        finally:
            wire.close()

    async def scene() -> dict[str, tuple[int, str]]:
        return {name: await one(data) for name, (_, data) in HEADS.items()}

    told = play(scene())
    assert {name: status for name, (status, _) in told.items()} == {
        name: status for name, (status, _) in HEADS.items()
    }
    assert {connection for status, connection in told.values() if status not in (200, 404)} == {"close"}


def test_nothing_behind_a_request_that_closes_is_served(url: str) -> None:
    async def scene() -> bytes:
        wire = await Wire.open(url)
        try:
            await wire.send(head(b"connection: close\r\n" + HI) + head())
            return await wire.everything()
        finally:
            wire.close()

    assert play(scene()).count(b"HTTP/1.1 ") == 1


def test_a_request_of_several_hosts_leaves_no_trace_in_the_next(url: str) -> None:
    """Trailers are no headers: neither are they judged like these."""

    async def scene() -> list[int]:
        wire = await Wire.open(url)
        try:
            trailed = head(CHUNKED + HI_CHUNKED[:-2] + b"host: ?\r\nhost: u\r\n\r\n")
            statuses = []
            for data in (trailed, head(), trailed, head(host=b"u")):
                await wire.send(data)
                statuses.append((await wire.answer()).status)
            return statuses
        finally:
            wire.close()

    assert play(scene()) == [200] * 4
