"""The journal: rows, header, rotation, torn lines, full queue, full disk, several writers."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from narwhal.errors import ConfigError
from narwhal.model.request import RequestRow
from narwhal.telemetry.journal import Journal, JournalFile, JournalStats
from tests.support.processes import eventually
from tests.support.rows import finished_row

META = {"package": "narwhal-router", "version": "0", "git_commit": None, "source_digest": "sha256:0"}


def journal(path: Path, *, run: str = "run-a", capacity: int = 100) -> Journal:
    return Journal(str(path), run=run, meta=META, capacity=capacity)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_run_has_one_header_then_a_row_per_request(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "journal.jsonl"
    book = journal(path)
    book.start()
    book.request(finished_row("r1"))
    book.request(finished_row("r2", terminal="failed"))
    book.close()
    header, first, second = rows_of(path)
    assert header == {
        "kind": "meta",
        "schema": "narwhal.journal",
        "schema_version": 1,
        "run": "run-a",
        **META,
    }
    assert list(first) == ["kind", "run", *[field.name for field in dataclasses.fields(RequestRow)]]
    assert (first["kind"], first["run"], first["rid"], first["ttft_s"]) == ("request", "run-a", "r1", 0.25)
    assert (second["rid"], second["terminal"]) == ("r2", "failed")
    assert book.stats == JournalStats(written=2)


def test_the_header_is_there_before_any_request(tmp_path: Path) -> None:
    book = journal(tmp_path / "j.jsonl")
    book.start()
    assert [row["kind"] for row in rows_of(tmp_path / "j.jsonl")] == ["meta"]
    book.close()


def test_an_event_has_its_kind_time_and_fields(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    book = journal(path)
    book.start()
    book.event("hold", 12.5, fields={"iid": "e0", "nested": {"a": [1]}, "role": stat})
    book.close()
    row = rows_of(path)[1]
    assert (row["kind"], row["run"], row["at"], row["iid"], row["nested"]) == (
        "hold", "run-a", 12.5, "e0", {"a": [1]},
    )  # fmt: skip


def test_text_that_is_no_unicode_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    book = journal(path)
    book.start()
    book.request(finished_row(error="bad \ud800 text"))
    book.event("odd", 1.0, fields={"what": "\udfff"})
    book.close()
    assert rows_of(path)[1]["error"] == "bad \ud800 text"
    assert rows_of(path)[2]["what"] == "\udfff"


def test_the_file_is_for_owner_and_group_only(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    before = os.umask(0o077)
    try:
        book = journal(path)
        book.start()
    finally:
        os.umask(before)
    book.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_restarts_and_other_routers_append(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    first, second = journal(path, run="run-a"), journal(path, run="run-b")
    for book in (first, second):
        book.start()
        book.request(finished_row())
    for book in (first, second):
        book.close()
    assert sorted((row["run"], row["kind"]) for row in rows_of(path)) == [
        ("run-a", "meta"), ("run-a", "request"), ("run-b", "meta"), ("run-b", "request"),
    ]  # fmt: skip


def test_a_line_that_another_writer_left_torn_stays_alone(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"kind":"request","rid":"hal')
    book = journal(path)
    book.start()
    book.close()
    torn, header = path.read_text().splitlines()
    assert torn == '{"kind":"request","rid":"hal'
    assert json.loads(header)["kind"] == "meta"


def test_rotation_goes_on_in_a_new_file_with_a_header(tmp_path: Path) -> None:
    path, old = tmp_path / "j.jsonl", tmp_path / "j.jsonl.1"
    book = journal(path)
    book.start()
    book.request(finished_row("r1"))
    path.rename(old)
    book.reopen()
    book.close()
    kinds = [row["kind"] for row in rows_of(old) + rows_of(path)]
    assert sorted(kinds) == ["meta", "meta", "request"]
    assert rows_of(path)[0]["kind"] == "meta"


def test_rows_reach_the_file_while_the_journal_runs(tmp_path: Path) -> None:
    """One after a silence, many at once, and a file that a rotation took away while nothing is written."""
    path = tmp_path / "j.jsonl"
    book = journal(path, capacity=5000)
    book.start()
    for round_rows in (1, 1000, 1, 700):
        before = book.stats.written
        for n in range(round_rows):
            book.request(finished_row(f"r{n}"))
        eventually(lambda due=before + round_rows: book.stats.written == due, what="rows on disk")
    path.unlink()
    book.reopen()
    eventually(path.exists, what="the file anew")
    book.close()
    assert book.stats == JournalStats(written=1702)


def test_a_new_file_has_its_header_before_any_row(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    book = journal(path)
    book.start()
    path.unlink()
    book.reopen()
    book.close()
    assert [row["kind"] for row in rows_of(path)] == ["meta"]


def test_a_rotation_that_fails_keeps_the_old_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "runs"
    book = journal(folder / "j.jsonl")
    book.start()
    folder.rename(tmp_path / "old")
    folder.write_text("a file where the directory was")
    book.reopen()
    book.request(finished_row("r1"))
    book.close()
    assert [row["kind"] for row in rows_of(tmp_path / "old" / "j.jsonl")] == ["meta", "request"]
    assert "cannot be opened again" in caplog.text
    assert book.stats.failures == 1


def test_a_full_queue_drops_counts_and_tells(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "j.jsonl"
    book = journal(path, capacity=2)
    for n in range(5):
        book.request(finished_row(f"r{n}"))
    book.event("hold", 1.0, fields={})
    assert book.stats == JournalStats(dropped=4)
    book.start()
    book.close()
    kinds = [row["kind"] for row in rows_of(path)]
    assert kinds == ["meta", "journal_dropped", "request", "request"]
    assert rows_of(path)[1]["rows"] == 4
    assert book.stats == JournalStats(written=2, dropped=4)
    assert caplog.text.count("is full") == 1
    assert "4 rows were dropped" in caplog.text


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full (Linux)")
def test_a_full_disk_drops_and_counts_but_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    book = Journal("/dev/full", run="run-a", meta=META)
    book.start()
    for n in range(3):
        book.request(finished_row(f"r{n}"))
    book.close()
    assert book.stats.dropped == 3
    assert book.stats.written == 0
    assert book.stats.failures >= 2
    assert caplog.text.count("cannot be written") == 1


def test_after_a_full_disk_the_file_goes_on_whole(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    book = Journal("/dev/full", run="run-a", meta=META)
    book.start()
    book.request(finished_row("lost"))
    book.close()
    again = JournalFile(str(path), b'{"kind":"meta"}\n')
    again.open()
    again.append(b'{"rid":"r1"}\n')
    again.close()
    assert path.read_text() == '{"kind":"meta"}\n{"rid":"r1"}\n'


def test_a_path_that_cannot_be_opened_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"journal .* cannot be opened: Is a directory"):
        journal(tmp_path).start()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be opened"):
        journal(tmp_path / "file" / "j.jsonl").start()


def test_closing_without_a_start_says_what_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    book = journal(tmp_path / "j.jsonl")
    book.request(finished_row())
    book.close()
    assert "1 rows lost at the end" in caplog.text
