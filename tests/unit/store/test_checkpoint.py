"""The local file: whole or old, never torn; unreadable files name file and field; one live router each."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys

import pytest

from narwhal.errors import ConfigError, SavedStateError
from narwhal.model.handoff import CheckpointRecord
from narwhal.model.request import Counters
from narwhal.store.checkpoint import FileCheckpoint

DOCUMENT = {"schema": "narwhal.handoff", "schema_version": 1, "roles": {"e0": "décode"}, "epoch": 7}
RECORD = CheckpointRecord(
    document=DOCUMENT,
    seq=4,
    applied_n=9,
    epoch_floor=8,
    ttl_ms_max=7000,
    boot_id="b-1",
    boottime_s=12.5,
    totals={"run-1": Counters(served=3, offered=4), "run-2": Counters()},
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "state.json"


@pytest.fixture
def checkpoint(path):
    checkpoint = FileCheckpoint(path)
    yield checkpoint
    checkpoint.close()


def test_there_is_nothing_before_the_first_write(checkpoint):
    assert checkpoint.read() is None


@pytest.mark.parametrize("record", [RECORD, CheckpointRecord(document={}, epoch_floor=3)])
def test_a_record_comes_back(checkpoint, record):
    checkpoint.write(record)
    assert checkpoint.read() == record


def test_the_file_is_the_document_with_the_records_own_fields(checkpoint, path):
    checkpoint.write(RECORD)
    stored = json.loads(path.read_text())
    assert stored["roles"] == {"e0": "décode"}
    assert (stored["seq"], stored["epoch_floor"], stored["ttl_ms_max"]) == (4, 8, 7000)


def test_a_bare_handoff_document_is_a_checkpoint(checkpoint, path):
    path.write_text(json.dumps(DOCUMENT))
    assert checkpoint.read() == CheckpointRecord(document=DOCUMENT)


def test_a_record_says_which_file_it_came_from(checkpoint, path):
    checkpoint.write(RECORD)
    assert checkpoint.read().source == str(path)


def test_the_file_is_not_for_everybody(checkpoint, path):
    checkpoint.write(RECORD)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_no_temporary_file_stays(checkpoint, path):
    checkpoint.write(RECORD)
    checkpoint.write(RECORD)
    assert sorted(os.listdir(path.parent)) == ["state.json", "state.json.lock"]


def test_a_failed_write_leaves_the_old_document_and_no_temporary_file(checkpoint, path):
    checkpoint.write(RECORD)
    with pytest.raises(TypeError):
        checkpoint.write(CheckpointRecord(document={"x": object()}))
    assert checkpoint.read() == RECORD
    assert sorted(os.listdir(path.parent)) == ["state.json", "state.json.lock"]


def test_a_directory_in_the_way_is_an_os_error_without_leftovers(checkpoint, path):
    path.mkdir()
    with pytest.raises(OSError) as caught:
        checkpoint.write(RECORD)
    assert caught.value.errno in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST)
    assert sorted(os.listdir(path.parent)) == ["state.json", "state.json.lock"]


def test_a_full_disk_leaves_the_old_document(checkpoint, path):
    """/dev/full cannot take the place of a file, a size limit can: the write fails in the middle."""
    checkpoint.write(RECORD)
    script = (
        "import resource, signal, sys\n"
        "from narwhal.store.checkpoint import FileCheckpoint\n"
        "from narwhal.model.handoff import CheckpointRecord\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "checkpoint = FileCheckpoint(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try:\n"
        "    checkpoint.write(CheckpointRecord(document={'x': 'y' * 100_000}))\n"
        "except OSError:\n"
        "    sys.exit(7)\n"
    )
    checkpoint.close()
    assert run_python(script, str(path)).returncode == 7
    assert FileCheckpoint(path).read() == RECORD
    assert sorted(os.listdir(path.parent)) == ["state.json", "state.json.lock"]


def run_python(script, *args):
    return subprocess.run([sys.executable, "-c", script, *args], check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not a whole JSON document"),
        ('{"schema": "narwhal.handoff"', "not a whole JSON document"),
        ("[1]", "must hold a JSON object"),
        ("\udcff".encode("utf-8", "surrogateescape"), "not a whole JSON document"),
        ("[" * 100_000, "not a whole JSON document"),
        (json.dumps(DOCUMENT | {"schema": "narwhal.fleet"}), "schema must be 'narwhal.handoff', got"),
        (json.dumps({"roles": {}}), "schema must be"),
        (json.dumps(DOCUMENT | {"schema_version": 2}), "schema_version must be 1, got 2"),
        (json.dumps(DOCUMENT | {"seq": "4"}), "seq has the wrong type, got '4'"),
        (json.dumps(DOCUMENT | {"seq": True}), "seq has the wrong type, got True"),
        (json.dumps(DOCUMENT | {"epoch_floor": 1.5}), "epoch_floor has the wrong type"),
        (json.dumps(DOCUMENT | {"boot_id": 1}), "boot_id has the wrong type"),
        (json.dumps(DOCUMENT | {"epoch_floor": 2**52 + 1}), "epoch_floor must be at most 4503599627370496"),
        (json.dumps(DOCUMENT | {"totals": [1]}), "totals has the wrong type"),
        (json.dumps(DOCUMENT | {"totals": {"r": 1}}), "totals.r has the wrong type, got 1"),
        (json.dumps(DOCUMENT | {"totals": {"r": {"served": -1}}}), "totals.r.served must be a count, got -1"),
        (json.dumps(DOCUMENT | {"totals": {"r": {"served": True}}}), "totals.r.served must be a count"),
        (json.dumps(DOCUMENT | {"ttl_ms_max": -1}), "ttl_ms_max must not be negative"),
        ('{"boottime_s": Infinity}', "Infinity is no number"),
        ('{"boottime_s": 1e999}', "1e999 is no number that a double holds"),
        ('{"boottime_s": 1' + "0" * 400 + "}", "is no number that a double holds"),
        (
            json.dumps(DOCUMENT | {"lifecycle": {"process_starts": {"e0": 10**400}}}),
            "is no number that a double",
        ),
        (json.dumps(DOCUMENT | {"seq": 2**53 + 1}), "seq must be at most 9007199254740992"),
    ],
)
def test_what_cannot_be_loaded_names_file_and_field(checkpoint, path, text, told):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SavedStateError) as caught:
        checkpoint.read()
    assert str(path) in str(caught.value)
    assert told in str(caught.value)


def test_what_another_router_told_beyond_json_is_written_as_something_that_can_be_read(checkpoint):
    checkpoint.write(
        CheckpointRecord(document=DOCUMENT | {"new": [float("inf"), float("nan")], "big": 10**400})
    )
    told = checkpoint.read().document
    assert (told["new"], told["roles"]) == ([None, None], {"e0": "décode"})


def test_a_second_live_router_on_the_same_file_is_refused(checkpoint, path):
    with pytest.raises(ConfigError, match=r"state\.json is in use by another live router"):
        FileCheckpoint(path)


def test_the_lock_ends_with_its_router(checkpoint, path):
    checkpoint.close()
    checkpoint.close()
    FileCheckpoint(path).close()


def test_a_directory_that_cannot_be_made_is_a_configuration_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"state_path: .*/file is no directory: it cannot hold state\.json"):
        FileCheckpoint(tmp_path / "file" / "state.json")
    with pytest.raises(ConfigError, match=r"the directory .*/file/deeper cannot be made: Not a directory"):
        FileCheckpoint(tmp_path / "file" / "deeper" / "state.json")
    with pytest.raises(ConfigError, match="the directory /proc/narwhal cannot be made: No such file"):
        FileCheckpoint("/proc/narwhal/state.json")


def test_a_directory_in_the_place_of_the_file_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match=f"{tmp_path} is a directory"):
        FileCheckpoint(tmp_path)
    assert not tmp_path.with_name(tmp_path.name + ".lock").exists()
