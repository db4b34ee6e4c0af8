"""What judges the drills can fail: the probers see two owners where a rule is broken, none where it holds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.prober import overlaps, probing
from tests.support.processes import eventually
from tests.support.router import Router
from tests.support.router_stage import Stage, epoch, stage
from tests.support.tcp_gate import TcpGate, tcp_gate

SETTLE_S = 1.0
SELDOM_S = 5.0


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


@contextmanager
def shut_out(scene: Stage, module: str) -> Iterator[tuple[Router, Router, TcpGate]]:
    """An owner behind a door to the store that can be shut, and a standby of `module`."""
    with tcp_gate("127.0.0.1", scene.redis.port) as door:
        owner = scene.router("a", port=door.port)
        standby = scene.router("b", "--standby", module=module)
        eventually(lambda: standby.get("/ready").get("ready_to_take") is True, what="standby ready to take")
        yield owner, standby, door


def test_an_owner_cut_off_from_the_store(scene: Stage) -> None:
    """It stops by its own clock before anybody else may begin, and stands by when the store is back."""
    with shut_out(scene, "narwhal.cli.serve") as (owner, standby, door):
        with probing(owner.url, standby.url) as probers:
            door.shut()
            eventually(standby.ready, what="takeover")
            assert owner.get("/ready")["reason"] == "lease store unavailable"
            door.reopen()
            eventually(lambda: owner.get("/ready")["reason"] == "standby", what="back as standby")
        assert overlaps(probers) == []
        assert epoch(owner) == epoch(standby)


def test_the_probers_notice_a_router_that_does_not_watch_long_enough(scene: Stage) -> None:
    """The same with a standby that breaks one rule.

    The owner asks its engines seldom: their fence would tell it of the other one at its next check."""
    scene.sections["controller"] = {"monitor_interval_s": SELDOM_S}
    with shut_out(scene, "tests.support.hasty_router") as (owner, standby, door):
        with probing(owner.url, standby.url) as probers:
            door.shut()
            eventually(standby.ready, what="takeover")
            time.sleep(SETTLE_S)
        assert overlaps(probers) != []
