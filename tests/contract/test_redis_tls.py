"""rediss://: the certificate must be the name's, also though the name was resolved before connecting."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from narwhal.errors import StoreUnreachable
from narwhal.model.settings import StoreAddress
from narwhal.store.connection import RedisConnection
from tests.support.redis import RedisServer, free_port
from tests.support.services import program


@pytest.fixture
def secure(tmp_path):
    """A server with a certificate for `localhost` only. Gives its TLS port and the certificate's path."""
    certificate, key, port = tmp_path / "cert.pem", tmp_path / "key.pem", free_port()
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    words += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([program("openssl"), *words], check=True, capture_output=True)
    server = RedisServer("redis-server", tmp_path)
    server.options |= {"tls-port": str(port), "tls-cert-file": str(certificate), "tls-key-file": str(key)}
    server.options |= {"tls-ca-cert-file": str(certificate), "tls-auth-clients": "no"}
    try:
        server.start()
        yield port, certificate
    finally:
        server.stop()


def ping(host, port):
    async def scenario():
        connection = RedisConnection(StoreAddress(hosts=((host, port),), tls=True))
        try:
            return await connection.command("PING", timeout_s=5.0)
        finally:
            await connection.aclose()

    return asyncio.run(scenario())


def test_a_certificate_of_a_known_authority_for_the_name_is_taken(secure, monkeypatch):
    port, certificate = secure
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert ping("localhost", port) == b"PONG"


def test_a_certificate_for_another_name_is_refused(secure, monkeypatch):
    port, certificate = secure
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with pytest.raises(StoreUnreachable, match="certificate"):
        ping("127.0.0.1", port)


def test_a_certificate_of_an_unknown_authority_is_refused(secure):
    port, _ = secure
    with pytest.raises(StoreUnreachable, match="certificate"):
        ping("localhost", port)
