"""How the suite is spread over the workers of `pytest -n`."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import LONGEST, SPLIT, file_of
from tests.support.ports import BUS, FIRST, LAST, share

TESTS = Path(__file__).resolve().parents[2]


def test_the_files_named_there_are_test_files() -> None:
    assert [name for name in {*LONGEST, *SPLIT} if not (TESTS / name).is_file()] == []


def test_a_file_is_named_by_its_path_below_tests() -> None:
    assert file_of("tests/drills/test_rows.py::test_row[kill::x]") == "drills/test_rows.py"


def test_no_two_workers_share_a_port_and_buses_stay_below_outgoing_connections() -> None:
    for count in (1, 3, 8):
        ports = [port for number in range(count) for port in share(number, count)]
        assert len(ports) == len(set(ports))
        assert min(ports) >= FIRST
        assert max(ports) < LAST
    assert LAST + BUS <= 32_768
