"""The served document and the two answers that an identity is read from."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from narwhal.errors import AttestationInvalid, IdentityError
from narwhal.model.attestation import Attestation, digest_of, read_attestation
from narwhal.model.identity import EngineIdentity, read_process_start, read_version

BOUND = EngineIdentity("0.32.0", 1795979050.83)
ATTESTED = Attestation({"vllm_version": "0.32.0", "kv_heads": 8}, {"kv_heads": "config.json"}, BOUND)


NO_TIMES = (0, -1.0, 253_402_300_800, 1e17, 10**400)
NO_VERSIONS = ("\ud800", "0.32.0\n", "\x1b[31m", "x" * 200)


def served(**changes: Any) -> bytes:
    """The document with a digest that is right for the changes too."""
    document = {**ATTESTED.document(), **changes}
    return json.dumps({**document, "attestation_digest": digest_of(document)}).encode()


def test_a_served_document_reads_back() -> None:
    read = read_attestation(json.dumps(ATTESTED.document()).encode())
    assert read == ATTESTED
    assert read.digest == ATTESTED.document()["attestation_digest"]


def test_the_digest_is_over_the_compact_sorted_rest() -> None:
    rest = (
        '{"contract":{"kv_heads":8,"vllm_version":"0.32.0"},'
        '"engine":{"process_start_time_seconds":1795979050.83,"vllm_version":"0.32.0"},'
        '"schema":"narwhal.attestation","schema_version":1,"sources":{"kv_heads":"config.json"}}'
    )
    assert ATTESTED.digest == "sha256:" + hashlib.sha256(rest.encode()).hexdigest()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"not JSON", "no JSON object"),
        (b"[]", "no JSON object"),
        (b'{"schema": NaN}', "no JSON object"),
        (served(schema="narwhal.fleet"), "schema must be 'narwhal.attestation', got 'narwhal.fleet'"),
        (served(schema_version=2), "schema_version must be 1, got 2"),
        (served(schema_version=True), "schema_version must be 1, got True"),
        (served(contract=[]), "contract must be an object"),
        (served(sources=None), "sources must be an object"),
        (served(engine={"vllm_version": "", "process_start_time_seconds": 1.0}), "engine.vllm_version"),
        (served(engine={"vllm_version": "1", "process_start_time_seconds": True}), "must be a time"),
        (served(engine={"vllm_version": "1"}), "must be a time"),
        *(
            (served(engine={"vllm_version": "1", "process_start_time_seconds": time}), "must be a time")
            for time in NO_TIMES
        ),
        *(
            (served(engine={"vllm_version": version}), "vllm_version is no version")
            for version in NO_VERSIONS
        ),
    ],
)
def test_what_is_no_attestation_is_named(body: bytes, said: str) -> None:
    with pytest.raises(AttestationInvalid, match=said):
        read_attestation(body)


def test_a_document_that_was_changed_on_the_way_is_found() -> None:
    changed = served().replace(b'"kv_heads": 8', b'"kv_heads": 4')
    with pytest.raises(AttestationInvalid, match="attestation_digest is not the digest"):
        read_attestation(changed)


def test_a_version_is_read() -> None:
    assert read_version(b'{"version":"0.32.0"}') == "0.32.0"
    for body in (b"", b"[]", b"{}", b'{"version":""}', b'{"version":3}'):
        with pytest.raises(IdentityError, match="tells no version"):
            read_version(body)
    for version in NO_VERSIONS:
        with pytest.raises(IdentityError, match="tells a version that is no version: ") as refused:
            read_version(json.dumps({"version": version}).encode())
        assert str(refused.value).isprintable() and len(str(refused.value)) < 200


def test_a_process_start_is_read() -> None:
    text = b"# HELP process_start_time_seconds x\n# TYPE process_start_time_seconds gauge\n"
    assert read_process_start(text + b"process_start_time_seconds 1.79597905083e+09\n") == 1795979050.83
    assert read_process_start(b'process_start_time_seconds{a="b"} 5.5 1700000000\n') == 5.5


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"process_start_time_seconds_total 5\n", "no process_start_time_seconds"),
        (b"process_start_time_seconds 1\nprocess_start_time_seconds 2\n", "2 values"),
        (b"process_start_time_seconds nan\n", "is no time"),
        (b"process_start_time_seconds soon\n", "is no time"),
        (b"process_start_time_seconds\n", "is no time"),
        *(
            (b"process_start_time_seconds " + time + b"\n", "is no time")
            for time in (b"0", b"-1", b"inf", b"1e999", b"1e17", b"253402300800", b"9" * 400)
        ),
    ],
)
def test_a_process_start_that_tells_nothing_is_named(body: bytes, said: str) -> None:
    with pytest.raises(IdentityError, match=said):
        read_process_start(body)


def test_starts_that_differ_by_a_rounding_are_one() -> None:
    assert BOUND.started_with(EngineIdentity("0.33.0", 1795979050.83 + 5e-7))
    assert not BOUND.started_with(EngineIdentity("0.32.0", 1795979050.84))
