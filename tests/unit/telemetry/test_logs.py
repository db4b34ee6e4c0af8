"""Log lines: one record a line, UTC times, JSON objects, reopening after a rotation."""

from __future__ import annotations

import io
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from narwhal.telemetry.logs import NOISY, LogFile, configure, stamp


@pytest.fixture(autouse=True)
def root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in NOISY}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


def logged(form: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure(level, form, stream=stream)
    return stream


def test_times_are_utc_with_a_z() -> None:
    assert stamp(0.0) == "1970-01-01T00:00:00.000Z"
    assert stamp(1_780_000_000.1234) == "2026-05-28T20:26:40.123Z"


def test_json_logs_are_one_object_a_line() -> None:
    stream = logged("json")
    log = logging.getLogger("narwhal.test")
    log.info("two\nlines of %s", "text")
    try:
        raise ValueError("bad \ud800")
    except ValueError:
        log.exception("it broke")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"]) == (
        "info",
        "narwhal.test",
        "two\nlines of text",
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["at"])
    assert "ValueError" in second["exception"]


def test_a_line_break_in_a_message_passes_for_no_record() -> None:
    stream = logged("text")
    logging.getLogger("narwhal.test").warning("x\n2026-01-01T00:00:00.000Z ERROR forged: y")
    first, second = stream.getvalue().splitlines()
    assert first.endswith("WARNING narwhal.test: x")
    assert second.startswith("    ")


def test_libraries_that_log_every_call_are_quiet_below_debug() -> None:
    stream = logged("text")
    logging.getLogger("httpx").info("GET /health")
    assert stream.getvalue() == ""
    stream = logged("text", "debug")
    logging.getLogger("httpx").info("GET /health")
    assert "GET /health" in stream.getvalue()


def test_the_level_is_kept() -> None:
    stream = logged("text", "warning")
    logging.getLogger("narwhal.test").info("quiet")
    assert stream.getvalue() == ""


def test_a_rotated_log_file_is_opened_anew_under_its_name(tmp_path: Path) -> None:
    path, old = tmp_path / "narwhal.log", tmp_path / "narwhal.log.1"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        file = LogFile(fd)
        os.write(fd, b"before\n")
        path.rename(old)
        assert file.reopen()
        os.write(fd, b"after\n")
    finally:
        os.close(fd)
    assert (old.read_text(), path.read_text()) == ("before\n", "after\n")


def test_what_is_no_file_is_not_reopened() -> None:
    reader, writer = os.pipe()
    try:
        assert not LogFile(writer).reopen()
    finally:
        os.close(reader)
        os.close(writer)


def test_a_log_file_that_cannot_be_opened_again_keeps_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    fd = os.open(folder / "narwhal.log", os.O_WRONLY | os.O_CREAT)
    try:
        file = LogFile(fd)
        folder.rename(tmp_path / "moved")
        assert not file.reopen()
        os.write(fd, b"still\n")
    finally:
        os.close(fd)
    assert (tmp_path / "moved" / "narwhal.log").read_text() == "still\n"


@pytest.mark.parametrize("odd", ["\x1b[31m", "\r", "\0", "\u202e", "\ud800", "\x9b"])
def test_nothing_in_a_message_or_an_exception_steers_a_terminal(odd: str) -> None:
    stream = logged("text")
    log = logging.getLogger("narwhal.test")
    log.warning("it told %s", odd)
    try:
        raise ValueError(odd)
    except ValueError:
        log.exception("it broke")
    assert all(line.isprintable() for line in stream.getvalue().split("\n"))
    assert stream.getvalue().count(odd.encode("unicode_escape").decode()) == 2
