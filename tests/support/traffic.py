"""Clients that stream one completion after the other until they are told to stop."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.support.processes import LIVENESS_S


class Traffic:
    """`statuses` of all answers so far; 0 where there was none."""

    def __init__(self, url: str, *, max_tokens: int) -> None:
        self.statuses: list[int] = []
        self._address = urlsplit(url).netloc
        self._body = json.dumps({"prompt": "a few words", "max_tokens": max_tokens, "stream": True})
        self._stop = threading.Event()

    def work(self) -> None:
        while not self._stop.is_set():
            self.statuses.append(self._one())

    def _one(self) -> int:
        connection = http.client.HTTPConnection(self._address, timeout=LIVENESS_S)
        try:
            connection.request("POST", "/v1/completions", self._body, {"content-type": "application/json"})
            with connection.getresponse() as answer:
                answer.read()
                return answer.status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def stop(self) -> None:
        self._stop.set()


@contextmanager
def traffic(url: str, *, clients: int, max_tokens: int) -> Iterator[Traffic]:
    """So many clients, each in a thread, until the block ends; then their last answers are waited for."""
    made = Traffic(url, max_tokens=max_tokens)
    threads = [threading.Thread(target=made.work, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        made.stop()
        for thread in threads:
            thread.join(LIVENESS_S)
