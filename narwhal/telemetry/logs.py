"""Logs on standard error: lines for people, or one JSON object a line. Times are UTC, ISO 8601 with `Z`."""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

from narwhal.model.plain_text import escaped

NOISY: Final = ("httpx", "httpcore", "asyncio", "uvicorn", "uvicorn.error", "uvicorn.access")
"""Libraries that log each call: told from WARNING on, unless the level is debug."""


def stamp(seconds: float) -> str:
    """Unix seconds as `2026-11-29T21:49:30.123Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message`; a line break inside a message cannot pass for another record."""

    def format(self, record: logging.LogRecord) -> str:
        message = _lines(record.getMessage())
        line = f"{stamp(record.created)} {record.levelname} {record.name}: {message}"
        if record.exc_info:
            line += "\n    " + _lines(self.formatException(record.exc_info))
        return line


def _lines(text: str) -> str:
    """Further lines indented; what steers a terminal, and what no file can hold, escaped."""
    return "\n    ".join(escaped(line) for line in text.split("\n"))


class JsonFormatter(logging.Formatter):
    """One object: `at`, `level`, `logger`, `message`, and `exception` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        row = {
            "at": stamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)
        return json.dumps(row)


def configure(level: str, form: str, *, stream: TextIO | None = None) -> None:
    """Sets up the root logger. `level`: debug, info, warning or error; `form`: text or json."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.NOTSET if level == "debug" else logging.WARNING)


class LogFile:
    """The file that standard error was redirected to (`2>> narwhal.log`), if it is one.

    Made at start, while the file still has the name that a rotation will take from it.
    """

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self.path = _name_of(fd)
        """"" for a terminal, a pipe, a socket, or where the system does not tell."""

    def reopen(self) -> bool:
        """Points the descriptor at the file of that name, made anew after a rotation (SIGHUP).

        False when there is no such file or it cannot be opened: then the old one is kept.
        """
        if not self.path:
            return False
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            logging.getLogger("narwhal.logs").warning("log file cannot be opened again: %s", error)
            return False
        os.dup2(fd, self._fd)
        os.close(fd)
        return True


def _name_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") if stat.S_ISREG(os.fstat(fd).st_mode) else ""
    except OSError:
        return ""
