"""The relay that stands for a partition leaves nothing open, whoever goes first."""

from __future__ import annotations

import socket

from tests.support.tcp_gate import tcp_gate


def test_a_client_of_a_target_that_has_gone_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with tcp_gate("127.0.0.1", port) as gate, socket.create_connection(("127.0.0.1", gate.port)) as client:
        client.settimeout(10.0)
        assert client.recv(1) == b""


def test_a_gate_that_closes_takes_its_connections_with_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as target:
        with tcp_gate("127.0.0.1", target.getsockname()[1]) as gate:
            client = socket.create_connection(("127.0.0.1", gate.port))
            far, _ = target.accept()
            client.sendall(b"x")
            assert far.recv(1) == b"x"
        with client, far:
            assert (client.recv(1), far.recv(1)) == (b"", b"")
