"""rediss://: the certificate must be the name's, also though the name was resolved before connecting."""

from __future__ import annotations

import asyncio
import subprocess

import psutil
import pytest

from narwhal.errors import StoreUnreachable
from narwhal.model.handoff import LogPosition
from narwhal.model.lease import OwnerMeta, Renewed
from narwhal.model.settings import StoreAddress
from narwhal.model.store_call import AcquireRequest, PublishRequest, RenewRequest
from narwhal.store.connection import RedisConnection
from narwhal.store.handoff import ScriptHandoffStore
from narwhal.store.lease import ScriptLeaseStore
from narwhal.store.scripts import RedisRunner
from tests.support.ports import free_port
from tests.support.redis import PATIENT, RedisServer
from tests.support.services import program

EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def openssl(*words):
    subprocess.run([program("openssl"), *words], check=True, capture_output=True)


@pytest.fixture
def secure_server(tmp_path):
    """A server whose certificate for `localhost` only comes from a CA of our own. Gives it, its TLS port and
    the path of the CA's certificate."""
    authority, signer = tmp_path / "ca.pem", tmp_path / "ca.key"
    certificate, key, port = tmp_path / "cert.pem", tmp_path / "key.pem", free_port()
    ask, names = tmp_path / "ask.csr", tmp_path / "names"
    names.write_text("subjectAltName=DNS:localhost\n")
    openssl("req", "-x509", *EC, "-days", "2", "-subj", "/CN=own CA", "-keyout", signer, "-out", authority)
    openssl("req", *EC, "-subj", "/CN=localhost", "-keyout", key, "-out", ask)
    signed = ("-CA", authority, "-CAkey", signer, "-CAcreateserial", "-days", "2", "-extfile", names)
    openssl("x509", "-req", "-in", ask, *signed, "-out", certificate)
    server = RedisServer("redis-server", tmp_path)
    server.options |= {"tls-port": str(port), "tls-cert-file": str(certificate), "tls-key-file": str(key)}
    server.options |= {"tls-ca-cert-file": str(authority), "tls-auth-clients": "no"}
    try:
        server.start()
        yield server, port, authority
    finally:
        server.stop()


@pytest.fixture
def secure(secure_server):
    return secure_server[1:]


def open_sockets():
    return {(one.fd, one.laddr) for one in psutil.Process().net_connections("tcp")}


def ping(host, port):
    async def scenario():
        connection = RedisConnection(StoreAddress(hosts=((host, port),), tls=True), waits=PATIENT)
        try:
            return await connection.command("PING", timeout_s=15.0)
        finally:
            await connection.aclose()

    return asyncio.run(scenario())


def test_a_certificate_of_a_known_authority_for_the_name_is_taken(secure, monkeypatch):
    port, authority = secure
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    assert ping("localhost", port) == b"PONG"


def test_a_certificate_for_another_name_is_refused(secure, monkeypatch):
    port, authority = secure
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with pytest.raises(StoreUnreachable, match="certificate"):
        ping("127.0.0.1", port)


def test_a_certificate_of_an_unknown_authority_is_refused(secure):
    port, _ = secure
    with pytest.raises(StoreUnreachable, match="certificate"):
        ping("localhost", port)


def test_the_lease_and_the_document_are_kept_over_tls(secure, monkeypatch):
    """The scripts, their confirmation and the log, as over plain TCP."""
    port, authority = secure
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    address = StoreAddress(hosts=(("localhost", port),), tls=True)

    async def scenario():
        runner = RedisRunner(RedisConnection(address, waits=PATIENT))
        lease, handoff = ScriptLeaseStore(runner, "t"), ScriptHandoffStore(runner, "t")
        try:
            await lease.claim("n", floor=0, ttl_ms=5000, timeout_s=15.0)
            view = await lease.peek(timeout_s=15.0)
            owner = OwnerMeta("a", "http://a:1")
            request = AcquireRequest("ta", owner, view.version, str(view.inc), 0, 5000)
            taken = await lease.acquire(request, timeout_s=15.0)
            renewal = RenewRequest("ta", owner, taken.epoch, 1, taken.life, 5000)
            renewed = await lease.renew(renewal, timeout_s=15.0)
            document = b"{" + b" " * 300_000 + b"}"
            told = PublishRequest("ta", taken.epoch, 1, LogPosition(taken.epoch, 1), document)
            await handoff.publish(told, timeout_s=15.0)
            return renewed, (await handoff.load(timeout_s=15.0)).document == document
        finally:
            await runner.aclose()

    renewed, whole = asyncio.run(scenario())
    assert isinstance(renewed, Renewed)
    assert whole


@pytest.mark.parametrize("by", ["close", "deadline"])
def test_a_dropped_connection_waits_for_no_goodbye(secure_server, monkeypatch, by):
    """TLS ends with one from both sides, which a hung server never gives."""
    server, port, authority = secure_server
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    address = StoreAddress(hosts=(("localhost", port),), tls=True)

    async def scenario():
        connection = RedisConnection(address, waits=PATIENT)
        before = open_sockets()
        await connection.command("PING", timeout_s=15.0)
        assert open_sockets() - before
        server.freeze()
        if by == "close":
            await connection.aclose()
        else:
            with pytest.raises(StoreUnreachable, match="no answer"):
                await connection.command("PING", timeout_s=0.1)
        for _ in range(3):
            await asyncio.sleep(0)
        return open_sockets() - before

    try:
        assert asyncio.run(scenario()) == set()
    finally:
        server.thaw()
