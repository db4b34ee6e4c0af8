"""The key in files: who may read them, and what is never printed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from narwhal.cli.engine.command import main
from narwhal.cli.engine.env_files import write_env_files
from narwhal.errors import ConfigError
from tests.support.fleets import fleet_document, write_fleet

KEY = "sk-Abc.12_3+/=="


def keyed_fleet(folder: Path) -> str:
    return write_fleet(folder, fleet_document(engine={"engine_api_key_env": "ENGINE_KEY"}))


def test_both_files_are_private_and_hold_the_key(tmp_path: Path) -> None:
    written = write_env_files(tmp_path / "made", KEY)
    assert [path.name for path in written] == ["engine.env", "container.env"]
    assert [path.read_text() for path in written] == [
        f"NARWHAL_ENGINE_API_KEY={KEY}\n",
        f"VLLM_API_KEY={KEY}\n",
    ]
    assert {path.stat().st_mode & 0o777 for path in written} == {0o600}
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(tmp_path / "made")) == ["container.env", "engine.env"]


def test_files_that_others_could_read_are_replaced_whole(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("untouched")
    (tmp_path / "engine.env").symlink_to(elsewhere)
    (tmp_path / "container.env").write_text("old")
    (tmp_path / "container.env").chmod(0o666)
    for path in write_env_files(tmp_path, KEY):
        assert not path.is_symlink()
        assert path.stat().st_mode & 0o777 == 0o600
    assert elsewhere.read_text() == "untouched"


@pytest.mark.parametrize("key", ["two words", "it's", "$(id)", "a\\b", "a#b", "~root", '"quoted"', "käse"])
def test_a_key_that_is_not_read_alike_everywhere_is_refused_without_showing_it(
    tmp_path: Path, key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        write_env_files(tmp_path, key)
    assert key not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_the_command_prints_paths_and_never_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENGINE_KEY", f" {KEY}\n")
    fleet = keyed_fleet(tmp_path)
    assert main(["env", "--fleet", fleet, "--iid", "e0", "--out", str(tmp_path / "out")]) == 0
    assert main(["command", "--fleet", fleet, "--iid", "e0"]) == 0
    assert main(["command", "--fleet", fleet, "--iid", "e0", "--json"]) == 0
    told = capsys.readouterr()
    assert str(tmp_path / "out" / "container.env") in told.out
    assert KEY not in told.out + told.err
    assert (tmp_path / "out" / "container.env").read_text() == f"VLLM_API_KEY={KEY}\n"


@pytest.mark.parametrize(
    ("iid", "key", "said"),
    [
        ("e7", KEY, "--iid e7 is no engine of"),
        ("e0", None, "engine.engine_api_key_env names ENGINE_KEY, which is not set"),
        ("e0", "  ", "engine.engine_api_key_env names ENGINE_KEY, which is blank"),
        ("e0", "a b", "holds a character"),
    ],
)
def test_wrong_usage_is_status_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    iid: str,
    key: str | None,
    said: str,
) -> None:
    monkeypatch.delenv("ENGINE_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("ENGINE_KEY", key)
    assert main(["env", "--fleet", keyed_fleet(tmp_path), "--iid", iid, "--out", str(tmp_path / "o")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_fleet_without_a_key_has_nothing_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = write_fleet(tmp_path, fleet_document())
    assert main(["env", "--fleet", fleet, "--iid", "e0", "--out", str(tmp_path)]) == 2
    assert "this fleet's engines want no key" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENGINE_KEY", KEY)
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "below")
    assert main(["env", "--fleet", keyed_fleet(tmp_path), "--iid", "e0", "--out", out]) == 1
    assert "cannot be written: Not a directory" in capsys.readouterr().err
