"""narwhal-serve at its start and end: what is refused with status 2, what warnings, logs and journal tell."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleets import fleet_document, write_fleet
from tests.support.processes import Process, eventually, python

OPEN = {"serving": {"admission": "open"}}


def started(folder: Path, *options: str, env: Mapping[str, str] | None = None) -> Process:
    command = python("narwhal.cli.serve", "--state-path", str(folder / "runs" / "state.json"), *options)
    return Process(command, env=env)


def refused(folder: Path, *options: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Starts a router that must end with status 2; its lines, without the program's name."""
    process = started(folder, *options, env=env)
    try:
        assert process.ended() == 2, process.output
    finally:
        process.kill()
    assert "Traceback" not in process.output
    return [line.removeprefix("narwhal-serve: ") for line in process.lines]


@contextmanager
def running(folder: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[Process]:
    """A router on a free port, once it has said that it listens."""
    fleet = write_fleet(folder, fleet_document(**OPEN))
    process = started(folder, "--fleet", fleet, "--port", "0", *options, env=env)
    try:
        process.wait_for(lambda lines: any(" listens on " in line for line in lines))
        yield process
    finally:
        process.stop()


def test_every_problem_of_a_fleet_file_is_one_line(tmp_path: Path) -> None:
    path = write_fleet(
        tmp_path, fleet_document(serving={"max_connections": "512", "max_atempts": 2}, model="")
    )
    assert refused(tmp_path, "--fleet", path) == [
        f'{path}: model must be a nonempty string, got ""',
        f"{path}: serving.max_atempts is not a known field; did you mean max_attempts?",
        f'{path}: serving.max_connections must be an integer, got "512"',
    ]


def test_an_option_of_a_later_part_is_unknown(tmp_path: Path) -> None:
    fleet = write_fleet(tmp_path, fleet_document(**OPEN))
    lines = refused(tmp_path, "--fleet", fleet, "--lease", "1")
    assert lines == ["unrecognized arguments: --lease 1"]


def test_wrong_options_are_told_together(tmp_path: Path) -> None:
    fleet = write_fleet(tmp_path, fleet_document(**OPEN))
    lines = refused(tmp_path, "--fleet", fleet, "--port", "x", "--lease-ttl", "5", "--max-concurrent", "0")
    assert lines == [
        '--port must be an integer, got "x"',
        "--max-concurrent must be ≥ 1, got 0",
        "--lease-ttl needs --redis-url",
    ]


def test_a_port_in_use_is_said_before_anything_else_starts(tmp_path: Path) -> None:
    fleet = write_fleet(tmp_path, fleet_document(**OPEN))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        lines = refused(tmp_path, "--fleet", fleet, "--port", str(port))
    assert any(str(port) in line for line in lines)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("host", ["a..b", "no-such-host.invalid", "203.0.113.1"])
def test_a_host_that_is_none_of_ours_is_said(tmp_path: Path, host: str) -> None:
    fleet = write_fleet(tmp_path, fleet_document(**OPEN))
    lines = refused(tmp_path, "--fleet", fleet, "--port", "0", "--host", host)
    assert host in lines[-1]


def test_a_journal_that_cannot_be_opened_is_said(tmp_path: Path) -> None:
    fleet = write_fleet(tmp_path, fleet_document(**OPEN))
    lines = refused(tmp_path, "--fleet", fleet, "--port", "0", "--journal", str(tmp_path))
    assert f"journal {tmp_path} cannot be opened: Is a directory" in lines[-1]


def test_json_logs_are_one_object_a_line_and_tell_warnings(tmp_path: Path) -> None:
    env = {"NARWHAL_LOG_FORMAT": "json", "NARWHAL_LEASE_TTTL": "3", "NARWHAL_PORT": "tcp://10.0.0.1:8000"}
    with running(tmp_path, env=env) as process:
        assert process.stop() == 0
    rows = [json.loads(line) for line in process.lines]
    assert all(row["at"].endswith("Z") for row in rows)
    text = " ".join(row["message"] for row in rows)
    assert "did you mean NARWHAL_LEASE_TTL?" in text
    assert "enableServiceLinks: false" in text
    assert sum(" listens on " in row["message"] for row in rows) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path) as process:
        process.send(number)
        assert process.ended() == 0, process.output
    assert "Traceback" not in process.output


def test_the_journal_stands_beside_the_state_and_is_rotated_by_sighup(tmp_path: Path) -> None:
    path, old = tmp_path / "runs" / "journal.jsonl", tmp_path / "runs" / "journal.jsonl.1"
    with running(tmp_path, "--router-id", "router-a") as process:
        (header, *_) = rows_of(path)
        path.rename(old)
        process.send(signal.SIGHUP)
        eventually(lambda: path.exists() and path.stat().st_size > 0, what="a new journal")
    assert (header["kind"], header["schema"], header["router_id"]) == ("meta", "narwhal.journal", "router-a")
    assert header["source_digest"].startswith("sha256:")
    assert rows_of(path)[0] == header
    assert path.stat().st_mode & 0o777 == 0o640


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_service_manager_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(30)
        manager.bind(str(tmp_path / "notify"))
        with running(tmp_path, env={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as process:
            assert manager.recv(64) == b"READY=1"
            process.send(signal.SIGTERM)
            assert manager.recv(64) == b"STOPPING=1"
            assert process.ended() == 0
