"""Independent eyes on routers: who says it is ready, asked every 20 ms over a connection of its own."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from narwhal.cli import witness
from narwhal.cli.witness import Yes

EVERY_S = 0.02
ANSWER_S = 2.0


class Prober:
    """One router's prober, on a thread of its own. `yeses` grows while it runs."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.yeses: list[Yes] = []
        self.asked = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(2 * ANSWER_S)

    def _run(self) -> None:
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=ANSWER_S)
        while not self._end.wait(EVERY_S):
            asked = time.monotonic()
            try:
                connection.request("GET", "/ready")
                answer = connection.getresponse()
                body = json.loads(answer.read())
            except (OSError, http.client.HTTPException):
                connection.close()
                continue
            self.asked += 1
            if answer.status == 200:
                self.yeses.append(Yes(self.url, int(body["epoch"]), asked, time.monotonic()))
        connection.close()


@contextmanager
def probing(*urls: str) -> Iterator[Sequence[Prober]]:
    probers = [Prober(url) for url in urls]
    try:
        yield probers
    finally:
        for prober in probers:
            prober.stop()


def overlaps(probers: Sequence[Prober]) -> list[tuple[Yes, Yes]]:
    """What all of them saw that cannot be."""
    return witness.overlaps(yes for prober in probers for yes in prober.yeses)
