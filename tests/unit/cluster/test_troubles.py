"""What a store answers that cannot be used: one line when it begins, one when it is over."""

from __future__ import annotations

import pytest

from narwhal.cluster.trouble import Troubles
from narwhal.errors import StoreProtocolError, StoreUnreachable
from narwhal.model.store_call import RouterEntry
from tests.unit.cluster.cluster_rig import Scene, TroubledRegistry, play


def test_the_same_answer_is_told_once_and_its_end_with_how_often_it_came(
    caplog: pytest.LogCaptureFixture,
) -> None:
    troubles = Troubles()
    for _ in range(3):
        troubles.met("roster", StoreProtocolError("NOPERM"))
    troubles.met("roster", StoreProtocolError("WRONGPASS"))
    troubles.over("roster")
    troubles.over("roster")
    assert caplog.messages == [
        "roster: NOPERM",
        "roster: WRONGPASS",
        "roster: the store's answers can be used again (4 could not)",
    ]


def test_silence_is_not_told_here(caplog: pytest.LogCaptureFixture) -> None:
    troubles = Troubles()
    troubles.met("roster", StoreUnreachable("no answer"))
    troubles.over("roster")
    assert caplog.messages == []


def test_rights_that_are_taken_away_are_one_line_and_not_one_a_try(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(registry: TroubledRegistry, entry: RouterEntry, *, timeout_s: float) -> bool:
        raise StoreProtocolError("router_announce: NOPERM")

    async def script(scene: Scene) -> None:
        await scene.owner("a")
        with monkeypatch.context() as patched:
            patched.setattr(TroubledRegistry, "announce", refused)
            await scene.clock.sleep(12.0)
        await scene.clock.sleep(5.0)

    play(script)
    told = [line for line in caplog.messages if line.startswith("roster: ")]
    assert told[0] == "roster: router_announce: NOPERM"
    assert told[1].startswith("roster: the store's answers can be used again (")
    assert len(told) == 2
