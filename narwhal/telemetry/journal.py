"""The journal (serving.md section 3): JSON Lines, append only, several routers and restarts in one file.

The loop only appends to a bounded queue; a thread of its own encodes and writes. It sleeps until there is a
row and then a moment longer, for what comes together goes out in one write. A full queue or disk drops
rows, counts them and says so; it never touches a request.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from narwhal.errors import ConfigError
from narwhal.model.request import RequestRow

SCHEMA: Final = "narwhal.journal"
SCHEMA_VERSION: Final = 1
MODE: Final = 0o640
CAPACITY: Final = 20_000
LINGER_S: Final = 0.2
"""From the first row to the write: waking a thread for every row costs the loop more than the row does."""
BATCH_ROWS: Final = 500
CLOSE_S: Final = 2.0
"""Longest wait for the writer at the end: a disk that hangs must not keep the process."""

log = logging.getLogger("narwhal.journal")


@dataclass(frozen=True, slots=True)
class JournalStats:
    """Since the start: rows on disk, rows lost, writes that failed."""

    written: int = 0
    dropped: int = 0
    failures: int = 0


class JournalFile:
    """The file itself: whole lines in one append each, so that writers do not mix within a line.

    Used by one thread at a time. `header` is written first by every process that opens the file, and
    again into a new file after a rotation.
    """

    def __init__(self, path: str, header: bytes) -> None:
        self._path = path
        self._header = header
        self._fd = -1
        self._torn = False
        self._header_due = True

    def open(self) -> None:
        """Opens or creates the file, mode 0640, and its directory. Raises OSError, then the old one stays.

        The header goes out with the next append.
        """
        folder = os.path.dirname(self._path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        new = _open_new(self._path)
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC) if new < 0 else new
        self.close()
        self._fd = fd
        self._torn = new < 0 and _ends_mid_line(self._path, fd)
        self._header_due = True

    def append(self, lines: bytes) -> None:
        """Appends whole lines. Raises OSError when not all of it was written."""
        data = (b"\n" if self._torn else b"") + (self._header if self._header_due else b"") + lines
        written = os.write(self._fd, data)
        if written < len(data):
            self._torn = data[written - 1 : written] != b"\n"
            raise OSError(f"only {written} of {len(data)} bytes written")
        self._torn = self._header_due = False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open_new(path: str) -> int:
    """A descriptor of a file that did not exist, else -1."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    except FileExistsError:
        return -1
    os.fchmod(fd, MODE)
    return fd


def _ends_mid_line(path: str, fd: int) -> bool:
    """True when another writer died within a line."""
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size == 0:
        return False
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
    return False


class Journal:
    """Queue and writer thread over one JournalFile.

    `meta` becomes the header row beside schema and versions; `run` names this process in every row.
    Everything but the writer is called from the main loop.
    """

    def __init__(self, path: str, *, run: str, meta: Mapping[str, Any], capacity: int = CAPACITY) -> None:
        self.path = path
        self._capacity = capacity
        self._queue: deque[RequestRow | bytes] = deque()
        self._file = JournalFile(path, header_row(run, meta))
        self._run = orjson.dumps(run)
        self._request_head = b'{"kind":"request","run":' + self._run + b","
        self._written = 0
        self._dropped = 0
        self._dropped_by_writer = 0
        self._failures = 0
        self._reported = 0
        self._told_full = False
        self._failing = False
        self._reopen = False
        self._ended = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="narwhal-journal", daemon=True)

    def start(self) -> None:
        """Opens the file and starts the writer. Raises ConfigError when it cannot be opened."""
        try:
            self._file.open()
        except OSError as error:
            raise ConfigError(f"journal {self.path} cannot be opened: {error.strerror or error}") from None
        self._write([])
        self._thread.start()

    @property
    def stats(self) -> JournalStats:
        return JournalStats(self._written, self._dropped + self._dropped_by_writer, self._failures)

    def request(self, row: RequestRow) -> None:
        """Takes the row of one finished request; it must not change afterwards."""
        if len(self._queue) < self._capacity:
            self._queue.append(row)
            if not self._wake.is_set():
                self._wake.set()
        else:
            self._drop()

    def event(self, kind: str, at: float, *, fields: Mapping[str, Any]) -> None:
        """Takes one operator or monitor event. `at` is Unix seconds; `fields` are encoded at once."""
        if len(self._queue) < self._capacity:
            self._queue.append(event_row(kind, at, run=self._run, fields=fields))
            if not self._wake.is_set():
                self._wake.set()
        else:
            self._drop()

    def _drop(self) -> None:
        self._dropped += 1
        if not self._told_full:
            self._told_full = True
            log.warning(
                "journal %s: the queue of %d rows is full, rows are dropped", self.path, self._capacity
            )

    def reopen(self) -> None:
        """Has the writer open the path again (SIGHUP after a rotation). A failure keeps the old file."""
        self._reopen = True
        self._wake.set()

    def close(self) -> None:
        """Writes what is queued and ends the writer, waiting two seconds at most."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        left = len(self._queue)
        if left:
            log.warning("journal %s: %d rows lost at the end", self.path, left)

    def _work(self) -> None:
        while not self._ended.is_set():
            self._wake.wait()
            self._ended.wait(LINGER_S)
            self._wake.clear()  # before the queue is looked at: what comes from now on wakes again
            self.write_queued()
        self.write_queued()
        self._file.close()

    def write_queued(self) -> None:
        """One turn of the writer: reopens if asked to, then writes everything that is queued."""
        if self._reopen:
            self._reopen = False
            self._open_again()
        while self._queue:
            rows = [self._queue.popleft() for _ in range(min(BATCH_ROWS, len(self._queue)))]
            self._write(rows)

    def _open_again(self) -> None:
        try:
            self._file.open()
        except OSError as error:
            self._failures += 1
            log.warning("journal %s cannot be opened again: %s", self.path, error)
        else:
            self._write([])

    def _write(self, rows: list[RequestRow | bytes]) -> None:
        lines = [row if isinstance(row, bytes) else request_row(row, self._request_head) for row in rows]
        lost = self.stats.dropped - self._reported
        if lost:
            lines.append(event_row("journal_dropped", time.time(), run=self._run, fields={"rows": lost}))
        try:
            self._file.append(b"".join(lines))
        except OSError as error:
            self._failed(len(rows), error)
            return
        self._written += len(rows)
        self._failing = False
        if lost:
            self._reported += lost
            self._told_full = False
            log.warning("journal %s: %d rows were dropped", self.path, lost)

    def _failed(self, rows: int, error: OSError) -> None:
        if not self._failing:
            log.warning("journal %s cannot be written, rows are dropped: %s", self.path, error)
        self._failing = True
        self._dropped_by_writer += rows
        self._failures += 1


def header_row(run: str, meta: Mapping[str, Any]) -> bytes:
    return _line({"kind": "meta", "schema": SCHEMA, "schema_version": SCHEMA_VERSION, "run": run, **meta})


def request_row(row: RequestRow, head: bytes) -> bytes:
    """`head` is the opening of the object with kind and run."""
    return head + _line(row)[1:]


def event_row(kind: str, at: float, *, run: bytes, fields: Mapping[str, Any]) -> bytes:
    body = _line({"at": at, **fields})
    return b'{"kind":' + orjson.dumps(kind) + b',"run":' + run + b"," + body[1:]


def _line(value: Any) -> bytes:
    """JSON and a line end. Text that is no Unicode (a lone surrogate from an engine) is escaped."""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
    except TypeError:
        plain = asdict(value) if isinstance(value, RequestRow) else value
        return json.dumps(plain, default=str).encode() + b"\n"
