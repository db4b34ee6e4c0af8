"""What is told to people is told as it is, brackets and all."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from narwhal.cli.lifecycle.progress import telling
from narwhal.cli.terminal import plain_console

CLI = Path(__file__).resolve().parents[3] / "narwhal" / "cli"
WORDS = "connect: [Errno 111] refused, e[0] [/] [bold]"


def test_brackets_are_no_markup_in_lines_nor_in_tables(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("engine")
    table.add_row(WORDS)
    screen = plain_console()
    screen.print(WORDS)
    screen.print(Text(WORDS))
    screen.print(table)
    assert capsys.readouterr().out.count(WORDS) == 3


@pytest.mark.parametrize("terminal", ["1", ""])
def test_progress_is_told_as_it_is(
    terminal: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", terminal)
    with telling("narwhal drain") as tell:
        tell(WORDS)
    assert WORDS in capsys.readouterr().err


def test_no_command_makes_a_console_of_its_own() -> None:
    makers = [path.name for path in CLI.rglob("*.py") if " Console(" in path.read_text("utf-8")]
    assert makers == ["terminal.py"]
