"""A stopped core behind a good `/health`, and clients who leave before any limit of ours has passed."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from tests.faults.play import until
from tests.faults.site import Site, fault_site
from tests.support.load import WHOLE, ask_for

LEAVES_S = 6.0
EVERY_S = 0.25
OUT_S = 90.0
LIMIT_S = 16.0
"""Nobody waits for the end of it, and an engine that gives nothing for so long is suspected."""


class Crowd:
    """One request each quarter of a second, each with a client that leaves after 6 s."""

    def __init__(self, site: Site) -> None:
        self.hows: list[str] = []
        self._url = site.router.url
        self._sent: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        while True:
            number = len(self._sent)
            self._sent.append(asyncio.create_task(self._one(number)))
            await asyncio.sleep(EVERY_S)

    async def _one(self, number: int) -> None:
        try:
            async with asyncio.timeout(LEAVES_S):
                how = await ask_for(self._url, f"impatient {number}", f"impatient-{number}", tokens=4)
        except TimeoutError:
            how = "left"
        self.hows.append(how)

    async def ends(self) -> None:
        await asyncio.gather(*self._sent)


def test_an_engine_that_gives_nothing_to_those_who_leave_is_probed_and_out(tmp_path: Path) -> None:
    async def scene(site: Site) -> Crowd:
        crowd = Crowd(site)
        coming = asyncio.create_task(crowd.run())
        await asyncio.to_thread(site.engine("e1").order, "core_stopped")
        try:
            assert await until(lambda: site.out() == {"e1": "ejected"}, OUT_S), site.out()
        finally:
            coming.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await coming
            await crowd.ends()
        return crowd

    with fault_site(tmp_path / "site", serving={"prefill_timeout_s": LIMIT_S}) as site:
        crowd = asyncio.run(scene(site))
        ejections = [row for row in site.tail.read() if row["kind"] == "ejection"]
        streaks = site.router.state()["breaker"]["failures"]
    assert [row["iid"] for row in ejections] == ["e1"]
    assert "clients left" in ejections[0]["reason"]
    assert "left" in crowd.hows and set(crowd.hows) <= {WHOLE, "left"}
    assert not any(any(row.values()) for row in streaks.values()), "nobody is charged with a client's leaving"
