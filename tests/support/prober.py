"""Independent eyes on routers: who says it is ready, asked every 20 ms over a connection of its own."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

EVERY_S = 0.02
ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class Yes:
    """One 200 on /ready: the router admitted at some instant between `asked` and `told`."""

    url: str
    epoch: int
    asked: float
    told: float


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
    """Pairs of an answer of a newer owner and a later question that an older owner still said yes to."""
    everything = sorted((yes for prober in probers for yes in prober.yeses), key=lambda yes: yes.told)
    found: list[tuple[Yes, Yes]] = []
    for older in everything:
        newer = next((one for one in everything if one.told <= older.asked and one.epoch > older.epoch), None)
        if newer is not None:
            found.append((newer, older))
    return found
