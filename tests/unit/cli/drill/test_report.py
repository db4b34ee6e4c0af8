"""Figures of a drill, its command line, and the balancer's configuration on free ports."""

from __future__ import annotations

from pathlib import Path

import pytest

from narwhal.cli.drill import main
from narwhal.cli.drill.machines import balancer_config
from narwhal.cli.drill.report import figures, first_bytes, goal_met, share
from narwhal.cli.drill.rows import ROWS
from narwhal.cli.drill.run import Outcome, Shot
from narwhal.cli.drill.traffic import Books, Ending

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
    assert goal_met(ROWS[name], takeovers, added_ms=None) is met


@pytest.mark.parametrize(("wait_s", "added_ms", "met"), [(0.104, 4.0, True), (0.105, 5.0, False)])
def test_a_store_fault_that_nobody_may_notice_adds_less_than_5_ms(
    wait_s: float, added_ms: float, met: bool
) -> None:
    usual = [Ending(at, at + 0.1, at + 0.5, "whole", 1) for at in (90.0, 91.0, 92.0)]
    during = [Ending(at, at + wait_s, at + 0.5, "whole", 1) for at in (100.5, 101.0)]
    never = Ending(101.0, None, 102.0, "refused", 1)
    shot = Shot(100.0, 102.5, ("a", "a"), (7, 7), 99.8)
    row = ROWS["store-frozen"]
    found = first_bytes(Outcome("store-frozen", row, shots=[shot], books=Books([*usual, *during, never])))
    assert (found["fault"]["count"], found["otherwise"]["count"]) == (2, 3)
    assert found["added_p99"] == added_ms
    assert goal_met(row, [], added_ms=found["added_p99"]) is met


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
