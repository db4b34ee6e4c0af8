"""When bytes last came in on a connection, asked of the kernel: nothing is noted as they pass."""

from __future__ import annotations

import asyncio
import socket
import struct

_LAST_DATA_RECV = 52
"""Offset of `tcpi_last_data_recv` (milliseconds, unsigned) in Linux' `struct tcp_info`; part of its ABI."""
_MILLISECONDS = struct.Struct("=I")
_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)


def silent_s(transport: asyncio.BaseTransport) -> float | None:
    """Seconds since the peer's last data arrived here, read or not. None: this platform does not tell."""
    sock = transport.get_extra_info("socket")
    if _TCP_INFO is None or sock is None:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LAST_DATA_RECV + _MILLISECONDS.size)
    except OSError:
        return None
    if len(info) < _LAST_DATA_RECV + _MILLISECONDS.size:
        return None
    milliseconds: int = _MILLISECONDS.unpack_from(info, _LAST_DATA_RECV)[0]
    return milliseconds / 1000
