"""Checkpoint: the file and its in-memory twin."""

from __future__ import annotations

import pytest

from narwhal.errors import SavedStateError
from narwhal.model.handoff import CheckpointRecord
from narwhal.store.checkpoint import FileCheckpoint
from narwhal.store.memory import MemoryCheckpoint

DOCUMENT = {"schema": "narwhal.handoff", "schema_version": 1, "roles": {"e0": "prefill"}}


class FileCase:
    def __init__(self, directory):
        self.path = directory / "state.json"
        self.checkpoint = FileCheckpoint(self.path)

    def make_writes_fail(self):
        self.path.unlink()
        self.path.mkdir()

    def tear(self):
        self.path.write_text('{"schema": "narw')

    def close(self):
        self.checkpoint.close()


class MemoryCase:
    def __init__(self):
        self.checkpoint = MemoryCheckpoint()

    def make_writes_fail(self):
        self.checkpoint.fails_with = OSError(28, "No space left on device")

    def tear(self):
        self.checkpoint.broken = SavedStateError("memory is not a whole JSON document")

    def close(self):
        pass


@pytest.fixture(params=["file", "memory"])
def case(request, tmp_path):
    case = FileCase(tmp_path) if request.param == "file" else MemoryCase()
    yield case
    case.close()


def test_nothing_is_there_at_first(case):
    assert case.checkpoint.read() is None


def test_the_last_record_written_is_read(case):
    for seq in (1, 2):
        record = CheckpointRecord(DOCUMENT, seq=seq, applied_n=3, epoch_floor=9, boot_id="b", boottime_s=1.5)
        case.checkpoint.write(record)
        assert case.checkpoint.read() == record


def test_a_write_that_fails_is_an_os_error(case):
    case.checkpoint.write(CheckpointRecord(DOCUMENT))
    case.make_writes_fail()
    with pytest.raises(OSError):
        case.checkpoint.write(CheckpointRecord({}))


def test_a_torn_record_is_a_saved_state_error_until_the_next_write(case):
    case.tear()
    with pytest.raises(SavedStateError, match="not a whole JSON document"):
        case.checkpoint.read()
    case.checkpoint.write(CheckpointRecord(DOCUMENT))
    assert case.checkpoint.read() == CheckpointRecord(DOCUMENT)
