"""A TCP relay that can be shut: what one router sees of a partition between it and the store."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TcpGate:
    """Relays connections to `target` until `shut`; then bytes stay where they are, connections open."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._ended = False
        self._sockets: list[socket.socket] = []
        self._guard = threading.Lock()
        """Of the two above: what is accepted while the gate closes must be closed too."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> None:
        self._open.clear()

    def reopen(self) -> None:
        self._open.set()

    def close(self) -> None:
        with self._guard:
            self._ended = True
        self._open.set()
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listener.accept()
            except OSError:
                continue
            try:
                far = socket.create_connection(self._target)
            except OSError:  # The target has gone: so has its client's connection.
                near.close()
                continue
            if self._keeps(near, far):
                for source, drain in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, drain), daemon=True).start()

    def _keeps(self, *pair: socket.socket) -> bool:
        """Closes them where the gate has closed meanwhile."""
        with self._guard:
            if not self._ended:
                self._sockets += pair
                return True
        for one in pair:
            one.close()
        return False

    def _pump(self, source: socket.socket, drain: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                drain.sendall(data)
        with contextlib.suppress(OSError):
            drain.shutdown(socket.SHUT_WR)


@contextmanager
def tcp_gate(host: str, port: int) -> Iterator[TcpGate]:
    gate = TcpGate((host, port))
    try:
        yield gate
    finally:
        gate.close()
