"""The samples file of `narwhal-profile` (`narwhal.samples` v1): JSON Lines, a header, then one row a sample.

A sweep takes long and may be stopped: what was measured is kept as it comes, and the next run measures only
what is missing. A last line that was cut by a kill is dropped.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TextIO

from narwhal.errors import ConfigError
from narwhal.model.numbers import count, seconds
from narwhal.model.sample import Phase, Point, Sample

SCHEMA: Final = "narwhal.samples"
SCHEMA_VERSION: Final = 1


class SamplesFile:
    """One file, open for appending. `samples`: what it holds, in its order.

    `model` and `engine_auth` are what is measured: samples of another model, or under another auth mode, do
    not belong into one fit. Raises ConfigError for a file that does not fit, cannot be read or written, or is
    another run's at this time.
    """

    def __init__(self, path: Path, *, model: str, engine_auth: str) -> None:
        self.path = path
        self._header = {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "model": model,
            "engine_auth": engine_auth,
        }
        try:
            with contextlib.suppress(FileExistsError):  # no directory: opening says so
                path.parent.mkdir(parents=True, exist_ok=True)
            self._file: TextIO = self._held(path)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from None
        try:
            self.samples = self._read()
        except ConfigError:
            self._file.close()
            raise
        if self._file.seek(0, os.SEEK_END) == 0:
            self._append(self._header)

    def _held(self, path: Path) -> TextIO:
        """Open for appending, for this run alone: another one would measure this one's load, and this one
        its. The system lets go of it at the end of the process, however that comes. Raises ConfigError."""
        file = path.open("a", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except BlockingIOError:
            pass
        except OSError:
            file.close()
            raise
        file.close()
        raise ConfigError(
            f"{self.path}: another narwhal-profile is measuring with it: wait for its end, or end it"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def keep(self, sample: Sample) -> None:
        """On disk before it returns, as far as a kill of this process goes."""
        self.samples.append(sample)
        self._append(_row(sample))

    def drop(self, engines: Iterable[str]) -> None:
        """Forgets all samples of these engines. The file is replaced whole: the others' samples took long.

        Raises ConfigError where the new one cannot be written; the old one is then as it was.
        """
        dropped = set(engines)
        kept = [sample for sample in self.samples if sample.iid not in dropped]
        fresh = self.path.with_name(f".{self.path.name}.tmp")
        try:
            lines = (json.dumps(row) + "\n" for row in (self._header, *map(_row, kept)))
            fresh.write_text("".join(lines), encoding="utf-8")
            file = self._held(fresh)
            fresh.replace(self.path)
            self._file.close()
            self._file = file
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror or error}") from None
        self.samples = kept

    def _append(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def _read(self) -> list[Sample]:
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror or error}") from None
        whole, _, torn = data.rpartition(b"\n")
        if torn:
            with open(self.path, "r+b") as file:
                file.truncate(len(data) - len(torn))
        lines = whole.splitlines()
        if not lines:
            return []
        self._check_header(self._object(lines[0], 1))
        return [self._sample(self._object(line, number), number) for number, line in enumerate(lines[1:], 2)]

    def _check_header(self, header: dict[str, Any]) -> None:
        for name, wanted in self._header.items():
            if header.get(name) != wanted:
                raise ConfigError(
                    f"{self.path}: {name} is {header.get(name)!r:.80}, this run's is {wanted!r}: "
                    "name another --samples file"
                )

    def _object(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise ConfigError(f"{self.path}: line {number} is no JSON object")
        return row

    def _sample(self, row: dict[str, Any], number: int) -> Sample:
        try:
            point = Point(Phase(row["phase"]), _whole(row["requests"]), _whole(row["about_tokens"]))
            return Sample(
                iid=str(row["iid"]),
                point=point,
                repeat=_whole(row["repeat"], least=0),
                tokens=_whole(row["tokens"]),
                seconds=_seconds(row["seconds"]),
                vllm_version=str(row["vllm_version"]),
            )
        except (KeyError, ValueError) as error:
            raise ConfigError(f"{self.path}: line {number} is no sample: {error}") from None


def _row(sample: Sample) -> dict[str, Any]:
    return {
        "iid": sample.iid,
        "phase": sample.point.phase.value,
        "requests": sample.point.requests,
        "about_tokens": sample.point.tokens,
        "repeat": sample.repeat,
        "tokens": sample.tokens,
        "seconds": sample.seconds,
        "vllm_version": sample.vllm_version,
    }


def _whole(value: Any, *, least: int = 1) -> int:
    number = count(value)
    if number is None or number < least:
        raise ValueError(f"{value!r:.40} is no whole number of at least {least}")
    return number


def _seconds(value: Any) -> float:
    if not (number := seconds(value)):
        raise ValueError(f"{value!r:.40} is no positive number of seconds")
    return number
