"""The effective configuration: every value with its source, no secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from narwhal.cli.main import COMMANDS
from narwhal.cli.main import main as narwhal
from narwhal.config.option_table import OPTIONS
from narwhal.config.show import effective_config
from narwhal.config.start import read_start
from tests.support.fleets import fleet_document, write_fleet

SECRET = "hunter2"


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    serving = {"admission": "open", "request_timeout_s": 60}
    return write_fleet(tmp_path, fleet_document(serving=serving))


def document(fleet: str, *argv: str, **env: str) -> dict[str, Any]:
    return effective_config(read_start(("--fleet", fleet, *argv), env), "node")


def test_every_value_tells_where_it_came_from(fleet: str) -> None:
    shown = document(
        fleet, "--graceful-timeout", "3", NARWHAL_STATE_PATH="/s.json", NARWHAL_MAX_CONCURRENT="9"
    )
    values, options = shown["values"], shown["options"]
    assert values["model"] == {"value": "tiny", "source": "file"}
    assert values["serving.max_connections"] == {"value": 512, "source": "default"}
    assert values["serving.prefill_timeout_s"] == {
        "value": 60.0,
        "source": "default, limited by serving.request_timeout_s",
    }
    assert values["serving.graceful_timeout_s"] == {"value": 3.0, "source": "flag"}
    assert values["recovery.state_path"] == {"value": "/s.json", "source": "environment"}
    assert options["state-path"] == values["recovery.state_path"]
    assert options["max-concurrent"] == {"value": 9, "source": "environment"}
    assert options["journal"] == {"value": "/journal.jsonl", "source": "default"}
    assert options["router-id"] == {"value": "node:8000", "source": "default"}
    assert set(options) == {option.name for option in OPTIONS}
    assert (shown["schema"], shown["schema_version"]) == ("narwhal.effective-config", 1)


def test_an_option_that_the_file_decides_says_so(tmp_path: Path) -> None:
    fleet = write_fleet(tmp_path, fleet_document(serving={"admission": "open", "max_connections": 40}))
    assert document(fleet)["options"]["max-concurrent"] == {"value": 40, "source": "file"}


def test_secrets_are_never_shown(fleet: str) -> None:
    shown = document(fleet, "--redis-url", f"redis://u:{SECRET}@h", "--redis-password-env", "PW", PW=SECRET)
    assert SECRET not in json.dumps(shown)
    assert shown["options"]["redis-url"] == {"value": "redis://h:6379/0", "source": "flag"}
    assert shown["options"]["redis-password-env"] == {"value": "PW", "source": "flag"}
    shown = document(fleet, "--control-key-env", "KEY", KEY=SECRET)
    assert SECRET not in json.dumps(shown)
    assert shown["options"]["control-key-env"] == {"value": "KEY", "source": "flag"}


def test_the_command_prints_json_and_warnings_apart(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert narwhal(["config", "show", "--fleet", fleet]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["values"]["model"]["value"] == "tiny"
    assert err == ""


def test_bad_configuration_ends_with_status_2_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = write_fleet(tmp_path, fleet_document(serving__max_connections="512", model=1))
    assert narwhal(["config", "show", "--fleet", fleet]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"narwhal config show: {fleet}: model must be a string, got 1",
        f'narwhal config show: {fleet}: serving.max_connections must be an integer, got "512"',
    ]


@pytest.mark.parametrize("argv", [["config"], ["config", "shew"], [], ["demoo"]])
def test_wrong_usage_ends_with_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert narwhal(argv) == 2
    assert "usage: narwhal" in capsys.readouterr().err


def test_the_umbrella_helps_and_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert narwhal(["--help"]) == narwhal(["--version"]) == narwhal(["config", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)
