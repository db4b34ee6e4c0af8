"""Figures of a drill, its command line, and the balancer's configuration on free ports."""

from __future__ import annotations

from pathlib import Path

import pytest

from narwhal.cli.drill import main
from narwhal.cli.drill.machines import balancer_config
from narwhal.cli.drill.report import figures, goal_met, share
from narwhal.cli.drill.rows import ROWS

ROOT = Path(__file__).resolve().parents[4]


def test_figures_of_fifty_runs() -> None:
    found = figures([n / 100 for n in range(1, 51)])
    assert (found["median"], found["p99"], found["most"]) == (0.255, 0.5, 0.5)


@pytest.mark.parametrize(
    ("name", "takeovers", "met"),
    [
        ("restart", [0.03, 0.04, 0.14], True),
        ("restart", [0.03, 0.06, 0.07], False),  # the median
        ("restart", [0.03, 0.04, 0.16], False),  # the worst
        ("kill", [0.29], True),
        ("kill", [0.31], False),
        ("kill", [], None),
        ("store-frozen", [], None),
    ],
)
def test_goals_are_judged_without_slack(name: str, takeovers: list[float], met: bool | None) -> None:
    assert goal_met(ROWS[name], takeovers) is met


def test_no_runs_have_no_figures() -> None:
    assert figures([])["median"] is None and share([], 0.5) is None


def test_the_list_names_every_row_and_its_goal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ROWS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "flood"], "--only flood: not a drill"),
        (["--only", "store-frozen", "--redis-url", "redis://x"], "it harms the store"),
        (["--haproxy", "no-such-file"], "--haproxy"),
        (["--folder", str(ROOT)], "must be empty or new"),
        (["--runs", "0"], "must be 1 to 1000"),
    ],
)
def test_wrong_use_is_one_sentence_and_status_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_the_shipped_balancer_configuration_is_led_to_the_ports_of_this_machine() -> None:
    text = (ROOT / "configs" / "haproxy.cfg").read_text(encoding="utf-8")
    moved = balancer_config(text, 4000, ports=[4001, 4002])
    assert "bind 127.0.0.1:4000" in moved
    assert "router-a:8001" not in moved and "router-b:8002" not in moved
    assert moved.count("127.0.0.1:4001") == moved.count("127.0.0.1:4002") == 3
    assert "srv_is_up(probe/router-a)" in moved
