"""Clients of a router pair that keep their own books: what they sent, what they got, when."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

ANSWER_S = 20.0
BODY = json.dumps({"model": "simulated", "prompt": "hello there", "max_tokens": 2}).encode()


class Client:
    """Asks one router after another until one serves it: one request at a time, over and over.

    `served` holds the times (monotonic) at which a whole answer was read; `refused` counts 503s and refused
    connections, `failed` everything else that was not served.
    """

    def __init__(self, urls: Sequence[str], pause_s: float) -> None:
        self._urls = list(urls)
        self._pause_s = pause_s
        self.served: list[float] = []
        self.refused = 0
        self.failed: list[str] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(2 * ANSWER_S)

    def _run(self) -> None:
        while not self._end.wait(self._pause_s):
            if not self._ask(self._urls[0]):
                self._urls.append(self._urls.pop(0))

    def _ask(self, url: str) -> bool:
        place = urlsplit(url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=ANSWER_S)
        try:
            connection.request("POST", "/v1/completions", BODY, {"content-type": "application/json"})
            answer = connection.getresponse()
            body = answer.read()
        except ConnectionRefusedError:
            self.refused += 1
            return False
        except (OSError, http.client.HTTPException) as error:
            self.failed.append(repr(error))
            return False
        finally:
            connection.close()
        if answer.status == 200:
            self.served.append(time.monotonic())
        elif answer.status == 503:
            self.refused += 1
        else:
            self.failed.append(f"{answer.status} {body[:200]!r}")
        return answer.status == 200


class Crowd:
    """Several clients and their books together."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients

    def served(self, *, until: float = float("inf")) -> int:
        return sum(at <= until for client in self._clients for at in client.served)

    @property
    def failed(self) -> list[str]:
        return [words for client in self._clients for words in client.failed]

    @property
    def refused(self) -> int:
        return sum(client.refused for client in self._clients)


@contextmanager
def crowd(urls: Sequence[str], *, size: int = 4, pause_s: float = 0.03) -> Iterator[Crowd]:
    clients = [Client(urls, pause_s) for _ in range(size)]
    try:
        yield Crowd(clients)
    finally:
        for client in clients:
            client.stop()
