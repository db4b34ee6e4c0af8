"""sd_notify over a real datagram socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from narwhal.telemetry.sd_notify import READY, STOPPING, notify


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(10)
        sock.bind(str(tmp_path / "notify"))
        yield sock


def test_the_manager_is_told(listener: socket.socket) -> None:
    env = {"NOTIFY_SOCKET": listener.getsockname()}
    assert notify(READY, env)
    assert notify(STOPPING, env)
    assert [listener.recv(64), listener.recv(64)] == [b"READY=1", b"STOPPING=1"]


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="abstract sockets are Linux's")
def test_an_abstract_address_begins_with_an_at_sign() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(10)
        sock.bind("")
        name = sock.getsockname()
        assert notify(READY, {"NOTIFY_SOCKET": "@" + name[1:].decode()})
        assert sock.recv(64) == b"READY=1"


def test_without_a_manager_nothing_happens() -> None:
    assert not notify(READY, {})


def test_a_manager_that_is_gone_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not notify(READY, {"NOTIFY_SOCKET": str(tmp_path / "none")})
    assert "cannot be told READY=1" in caplog.text
