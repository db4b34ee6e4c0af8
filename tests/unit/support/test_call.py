"""The exchange that tests have with routers and engines, where the other side breaks."""

from __future__ import annotations

import socket
import threading

import pytest

from tests.support.engines import call


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", b"hello\r\n"])
def test_an_answer_that_is_cut_or_none_is_an_oserror(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(65_536)
                client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(OSError, match=r"GET|closed connection"):
            call("GET", f"http://127.0.0.1:{server.getsockname()[1]}/x")
        thread.join()
