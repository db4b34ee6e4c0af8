"""The local file: what must outlive Redis (cluster.md section 7). JSON, mode 0640.

It is the handoff document with the record's own fields beside the document's (`_OWN`), so that a bare
handoff document is a checkpoint too. Without a document yet only those fields are there.

Written to a unique temporary file in the same directory, flushed, fsynced, renamed, the directory
fsynced: the file is the old document or the new one, never half of either.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from narwhal.atomic_file import replace_file
from narwhal.errors import ConfigError, SavedStateError
from narwhal.model.handoff import HANDOFF_SCHEMA, SCHEMA_VERSION, CheckpointRecord
from narwhal.model.lease import MAX_EPOCH
from narwhal.model.numbers import json_integer, json_number
from narwhal.model.plain_text import writable
from narwhal.model.request import Counters
from narwhal.store.numbers import MOST_EXACT, MOST_TTL_MS

MODE: Final = 0o640

_COUNTERS: Final = frozenset(Counters.__dataclass_fields__)
_OWN: Final[Mapping[str, type | tuple[type, ...]]] = {
    "seq": int,
    "applied_n": int,
    "epoch_floor": int,
    "ttl_ms_max": int,
    "boot_id": str,
    "boottime_s": (int, float),
    "totals": dict,
}
_MOST: Final = {
    "seq": MOST_EXACT,
    "applied_n": MOST_EXACT,
    "epoch_floor": MAX_EPOCH,
    "ttl_ms_max": MOST_TTL_MS,
}


class FileCheckpoint:
    """The port `Checkpoint` on one path. Making it creates the directory and takes `<path>.lock`.

    Raises ConfigError (exit 2) when another live router holds the file or the directory cannot be
    written. The lock goes with the process; `close` gives it up earlier.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock_fd = _locked(self.path)

    def read(self) -> CheckpointRecord | None:
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SavedStateError(f"{self.path} cannot be read: {error.strerror}") from error
        return _record(self.path, text)

    def write(self, record: CheckpointRecord) -> None:
        own = {name: getattr(record, name) for name in _OWN}
        own["totals"] = {run: counters.fields() for run, counters in record.totals.items()}
        document = {**record.document, **own}
        try:
            text = json.dumps(document, allow_nan=False)
        except ValueError:
            # Another router told an infinity or NaN in a field that this version does not know.
            text = json.dumps(writable(document), allow_nan=False)
        replace_file(self.path, text.encode(), mode=MODE)
        _sync_directory(self.path.parent)

    def close(self) -> None:
        """Gives the lock up. The lock file stays: removing it would let two routers lock two files."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def _locked(path: Path) -> int:
    if path.is_dir():
        raise ConfigError(f"recovery.state_path: {path} is a directory: name a file")
    lock = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
    except FileExistsError as error:
        raise ConfigError(
            f"recovery.state_path: {path.parent} is no directory: it cannot hold {path.name}"
        ) from error
    except OSError as error:
        what = "be writable" if path.parent.is_dir() else "be made"
        raise ConfigError(
            f"recovery.state_path: the directory {path.parent} cannot {what}: {error.strerror}"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise ConfigError(
            f"recovery.state_path: {path} is in use by another live router (lock {lock}): give each its own"
        ) from error
    return fd


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _record(path: Path, text: bytes) -> CheckpointRecord:
    fields = _parsed(path, text)
    try:
        return _read(path, dict(fields))
    except SavedStateError as error:
        document = {name: value for name, value in fields.items() if name not in _OWN}
        raise SavedStateError(str(error), fields=document) from error


def _read(path: Path, document: dict[str, Any]) -> CheckpointRecord:
    own: dict[str, Any] = {name: document.pop(name) for name in _OWN if name in document}
    for name, value in own.items():
        if not isinstance(value, _OWN[name]) or isinstance(value, bool):
            raise SavedStateError(f"{path}: {name} has the wrong type, got {value!r:.80}")
        if isinstance(value, int | float) and value < 0:
            raise SavedStateError(f"{path}: {name} must not be negative, got {value!r}")
    for name, most in _MOST.items():
        if own.get(name, 0) > most:
            raise SavedStateError(f"{path}: {name} must be at most {most}")
    own["totals"] = {run: _counters(path, run, told=told) for run, told in own.get("totals", {}).items()}
    for name, wanted in (("schema", HANDOFF_SCHEMA), ("schema_version", SCHEMA_VERSION)):
        if document and document.get(name) != wanted:
            raise SavedStateError(f"{path}: {name} must be {wanted!r}, got {document.get(name)!r}")
    return CheckpointRecord(document=document, source=str(path), **own)


def _counters(path: Path, run: str, *, told: object) -> Counters:
    """Fields of a newer version are not counted."""
    if not isinstance(told, dict):
        raise SavedStateError(f"{path}: totals.{run} has the wrong type, got {told!r:.80}")
    for name, count in told.items():
        if type(count) is not int or not 0 <= count <= MOST_EXACT:
            raise SavedStateError(f"{path}: totals.{run}.{name} must be a count, got {count!r:.80}")
    return Counters(**{name: count for name, count in told.items() if name in _COUNTERS})


def _parsed(path: Path, text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(
            text, parse_constant=_no_constant, parse_int=json_integer, parse_float=json_number
        )
    except (ValueError, RecursionError) as error:
        raise SavedStateError(f"{path} is not a whole JSON document: {error}") from error
    if not isinstance(fields, dict):
        raise SavedStateError(f"{path} must hold a JSON object")
    return fields


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")
