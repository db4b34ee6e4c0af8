"""The epoch fence that an inference engine loads (cluster.md section 5, engines are fenced too).

    vllm serve MODEL --middleware narwhal.fence.EpochFence

A router stamps what it sends with `x-narwhal-epoch: <cluster>/<epoch>`. The engine keeps the highest epoch
of each cluster and answers 409 `stale_epoch` to a lower one: a router that was replaced while its host was
paused cannot place work here any more, whatever its clock says. What passes without raising the epoch: no
header, a value that cannot be read or is above 2^52, and decode legs, for a request past its prefill is the
old owner's to finish.

Pure ASGI, the standard library only, nothing else of narwhal: an engine's environment needs this one file.
The memory is the process's: a restarted engine learns anew, from the owner's probes.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

EPOCH_HEADER = b"x-narwhal-epoch"
LEG_HEADER = b"x-narwhal-leg"
DECODE = b"decode"

MAX_EPOCH = 2**52
MOST_CLUSTERS = 16
"""Of more clusters those heard of longest ago are forgotten."""
LONGEST_VALUE = 256
"""Bytes of a header value that is read at all."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Epochs:
    """The highest epoch of each cluster. Safe from any thread; bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._highest: OrderedDict[bytes, int] = OrderedDict()

    @property
    def highest(self) -> dict[str, int]:
        """Cluster to its highest epoch, the one heard of last at the end."""
        with self._lock:
            return {cluster.decode("latin-1"): epoch for cluster, epoch in self._highest.items()}

    def superseded_by(self, value: bytes, leg: bytes) -> int | None:
        """Judges one request by its two headers, each b"" where it is absent, and remembers its epoch.

        The higher epoch by which the request is stale; None: it may pass.
        """
        told = _read(value)
        if told is None or leg.strip() == DECODE:
            return None
        cluster, epoch = told
        with self._lock:
            highest = max(epoch, self._highest.pop(cluster, 0))
            self._highest[cluster] = highest
            if len(self._highest) > MOST_CLUSTERS:
                self._highest.popitem(last=False)
        return highest if epoch < highest else None


def _read(value: bytes) -> tuple[bytes, int] | None:
    """Cluster and epoch of a header value; None for one that says nothing. With a comma it is several
    values that somebody on the way has joined."""
    cluster, slash, digits = value.strip().rpartition(b"/")
    if not (cluster and slash and digits.isdigit()) or b"," in value or len(value) > LONGEST_VALUE:
        return None
    epoch = int(digits)
    return (cluster, epoch) if epoch <= MAX_EPOCH else None


def refusal(epoch: int) -> bytes:
    """The body of a 409."""
    error = {
        "message": f"the router's epoch is superseded by {epoch}",
        "type": "stale_epoch",
        "param": None,
        "code": "stale_epoch",
        "epoch": epoch,
    }
    return json.dumps({"error": error}).encode()


class EpochFence:
    """The middleware around an engine's application."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.epochs = Epochs()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            value, leg = told_by(scope.get("headers") or ())
            epoch = self.epochs.superseded_by(value, leg)
            if epoch is not None:
                await _refuse(send, refusal(epoch))
                return
        await self._app(scope, receive, send)


def told_by(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """Epoch and leg of a request, b"" where one is absent. A router sends each once: of several the last."""
    value = leg = b""
    for name, content in headers:
        if name == EPOCH_HEADER:
            value = content
        elif name == LEG_HEADER:
            leg = content
    return value, leg


async def _refuse(send: Send, body: bytes) -> None:
    """The body of the request need not be read: the server ends the exchange."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 409, "headers": headers})
    await send({"type": "http.response.body", "body": body})
