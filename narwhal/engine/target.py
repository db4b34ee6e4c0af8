"""Where an engine listens, and the request heads that go there."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from narwhal.model.engine import EngineSpec, Leg
from narwhal.ports import EngineCall

Stamp = Callable[[], str | None]
"""The value of `x-narwhal-epoch` now (`<cluster>/<epoch>`), None without a cluster."""


def trusted_roots(engines: Sequence[EngineSpec]) -> ssl.SSLContext | None:
    """The system's (or SSL_CERT_FILE's) CAs; None where no engine speaks https.

    Reading them takes some 50 ms of a start that mostly needs none.
    """
    return ssl.create_default_context() if any(spec.url.startswith("https:") for spec in engines) else None


_PORTS = {"http": 80, "https": 443}
_MOST_HEADS = 32
"""Heads kept for one engine: those of two or three epochs."""


@dataclass(frozen=True, slots=True)
class Target:
    """One engine's address. `path` is the URL's path prefix, "" as a rule; `fixed` the constant headers.

    `heads` is what is the same for all requests of one route, leg and epoch: there are a handful of them,
    and an epoch changes only with an ownership.
    """

    iid: str
    host: str
    port: int
    path: str
    fixed: str
    tls: ssl.SSLContext | None
    heads: dict[tuple[str, str, Leg, str | None], str] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: EngineSpec, *, api_key: str, tls: ssl.SSLContext | None) -> Target:
        """`api_key` "": no Authorization. Only https URLs use `tls`, and need it."""
        parts = urlsplit(spec.url)
        host = parts.hostname or ""
        bearer = f"authorization: Bearer {api_key}\r\n" if api_key else ""
        return cls(
            iid=spec.iid,
            host=host,
            port=parts.port or _PORTS[parts.scheme],
            path=parts.path.rstrip("/"),
            fixed=f"host: {parts.netloc.rpartition('@')[2]}\r\naccept: */*\r\n{bearer}",
            tls=tls if parts.scheme == "https" else None,
        )

    def request(self, call: EngineCall, epoch: str | None) -> bytes:
        """The whole request as it goes on the wire. Nothing of the client's but `traceparent` is in it."""
        head = self.heads.get((call.method, call.path, call.leg, epoch)) or self._fixed_head(call, epoch)
        head += f"x-request-id: {call.rid}\r\n"
        if call.traceparent is not None and _is_clean(call.traceparent):
            head += f"traceparent: {call.traceparent}\r\n"
        if call.body or call.method == "POST":
            head += f"content-type: application/json\r\ncontent-length: {len(call.body)}\r\n"
        return (head + "\r\n").encode("latin-1") + call.body

    def _fixed_head(self, call: EngineCall, epoch: str | None) -> str:
        if len(self.heads) >= _MOST_HEADS:
            self.heads.clear()
        head = f"{call.method} {self.path}{call.path} HTTP/1.1\r\n{self.fixed}"
        head += f"x-narwhal-leg: {call.leg.value}\r\n"
        if epoch is not None:
            head += f"x-narwhal-epoch: {epoch}\r\n"
        self.heads[call.method, call.path, call.leg, epoch] = head
        return head


def _is_clean(value: str) -> bool:
    return value.isascii() and value.isprintable()
