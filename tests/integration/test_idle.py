"""A router that nobody uses: how often its threads wake up. Counted, not timed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.engines import engine_process
from tests.support.router import fleet_document, router_process

WAKE_UPS_A_SECOND = 30
"""With a pass a second: the pass, the engine's answer, the checkpoint's thread and its result, two ticks."""
SECONDS = 3


def wake_ups(pid: int) -> int:
    """How often threads of a process have given up the CPU by themselves since its start."""
    statuses = [task / "status" for task in Path(f"/proc/{pid}/task").iterdir()]
    words = [path.read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0] for path in statuses]
    return sum(map(int, words))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc (Linux)")
def test_an_idle_owner_sleeps_between_its_passes(tmp_path: Path) -> None:
    with engine_process(2) as engines, router_process(tmp_path, fleet_document(engines.engines)) as router:
        time.sleep(2.5)  # what the start and the first questions leave behind
        before = wake_ups(router.process.pid)
        time.sleep(SECONDS)
        assert (wake_ups(router.process.pid) - before) / SECONDS < WAKE_UPS_A_SECOND
