"""The `narwhal-attest` process, from checked options to its exit status."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from dataclasses import dataclass, field

import uvloop

from narwhal.attest.app import DOCUMENT_PATH, AttestationApp
from narwhal.attest.binding import Binding
from narwhal.attest.look import EngineLook
from narwhal.config.attestation import AttestedDocument
from narwhal.errors import IdentityError
from narwhal.runtime.exit_status import CLEAN, CRASHED
from narwhal.runtime.listener import HttpServer, bind
from narwhal.telemetry import logs

log = logging.getLogger("narwhal.attest")


@dataclass(frozen=True, slots=True)
class AttestOptions:
    """`timeout_s` bounds one look at the engine. `api_key` "": the engine wants none."""

    engine_base: str
    host: str
    port: int
    timeout_s: float
    rebind: bool
    api_key: str = field(default="", repr=False)


def attest(document: AttestedDocument, options: AttestOptions) -> int:
    """Serves until SIGTERM or SIGINT: 0. 1: the engine does not answer or is not the document's.

    Raises ConfigError when the address cannot be had.
    """
    logs.configure("info", "text")
    listener = bind(options.host, options.port)
    try:
        return uvloop.run(_life(document, options, listener=listener))
    finally:
        listener.close()


async def _life(document: AttestedDocument, options: AttestOptions, *, listener: socket.socket) -> int:
    binding = Binding(document.version, rebind=options.rebind)
    async with EngineLook(options.engine_base, timeout_s=options.timeout_s, api_key=options.api_key) as look:
        app = AttestationApp(binding, look.identity, contract=document.contract, sources=document.sources)
        try:
            bound = await app.bind()
        except IdentityError as error:
            log.error("%s: %s", options.engine_base, error)
            return CRASHED
        server = HttpServer(app, listener)
        await server.start()
        host = f"[{options.host}]" if ":" in options.host else options.host
        url = f"http://{host}:{listener.getsockname()[1]}{DOCUMENT_PATH}"
        log.info("attests at %s: %s", url, bound.words)
        await _told_to_end()
        await server.stop()
    return CLEAN


async def _told_to_end() -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
