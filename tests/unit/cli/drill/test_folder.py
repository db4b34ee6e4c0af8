"""A drill that fails leaves its logs, and says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from narwhal.cli.demo.machines import StartFailed
from narwhal.cli.drill.folder import kept_on_failure


@pytest.fixture
def said() -> list[str]:
    return []


def test_when_all_held_nothing_is_left(said: list[str]) -> None:
    with kept_on_failure(None, said.append) as folder:
        (folder.path / "a.log").touch()
        folder.held = True
    assert not folder.path.exists() and said == []


def test_what_did_not_hold_leaves_the_logs_in_a_folder_that_is_named(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with kept_on_failure(None, said.append) as folder:
        (folder.path / "a.log").touch()
    assert (folder.path / "a.log").exists() and folder.path.parent == tmp_path
    assert str(folder.path) in said[0]


def test_a_part_that_does_not_start_leaves_the_logs_too(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(StartFailed), kept_on_failure(None, said.append) as folder:
        raise StartFailed("a ended before: router a answers")
    assert folder.path.is_dir() and str(folder.path) in said[0]


def test_an_interrupted_drill_leaves_nothing(said: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt), kept_on_failure(None, said.append) as folder:
        raise KeyboardInterrupt
    assert not folder.path.exists() and said == []


def test_a_folder_of_the_users_stays_whatever_happened(said: list[str], tmp_path: Path) -> None:
    with kept_on_failure(str(tmp_path), said.append) as folder:
        folder.held = True
    assert folder.path == tmp_path and tmp_path.is_dir() and said == []
