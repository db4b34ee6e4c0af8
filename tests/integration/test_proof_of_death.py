"""runtime/host.py on real processes: one that lives, has ended, waits to be reaped, or may not be asked."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from narwhal.model.process import ProcessMark
from narwhal.policy.death import Signalled, proves_death
from narwhal.runtime.host import look_at, process_mark
from tests.support.processes import ROOT, eventually

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
LOOK = "import sys; from narwhal.runtime.host import look_at; print(look_at(int(sys.argv[1])).signalled.name)"


def mark_of(pid: int) -> ProcessMark:
    """What that process would have written about itself."""
    return replace(process_mark(), pid=pid, pid_start=look_at(pid).start)


def dead(mark: ProcessMark) -> bool:
    return proves_death(mark, process_mark(), look=look_at)


def test_every_fact_of_our_own_is_known_and_we_live() -> None:
    mark = process_mark()
    assert all(mark.place) and mark.pid == os.getpid() and mark.pid_start
    assert not dead(mark)


def test_a_process_lives_until_it_was_reaped() -> None:
    child = subprocess.Popen(SLEEP)
    mark = mark_of(child.pid)
    assert not dead(mark)
    child.kill()
    eventually(lambda: look_at(child.pid).state == "Z", what="a zombie")
    assert not dead(mark), "a zombie proves nothing"
    assert not dead(replace(mark, pid_start="1")), "not even with another start time"
    child.wait()
    assert dead(mark)


def test_a_pid_that_was_given_again_is_another_process() -> None:
    before = mark_of(os.getpid())
    assert dead(replace(before, pid_start=str(int(before.pid_start) - 1)))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to look with another user's eyes")
def test_a_process_of_another_user_proves_nothing() -> None:
    me = str(os.getpid())
    env = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    code = f"import os; os.setgid(65534); os.setuid(65534)\n{LOOK}"
    done = subprocess.run(
        [sys.executable, "-c", f"import narwhal.runtime.host\n{code}", me],
        env=env,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout.strip() == Signalled.FORBIDDEN.name, done.stderr


def test_the_start_time_survives_a_strange_name(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    began = time.time()
    child = subprocess.Popen([str(program), "60"])
    try:
        sight = look_at(child.pid)
        boot_s = began - float(Path("/proc/uptime").read_text().split()[0])
        started_s = boot_s + int(sight.start) / os.sysconf("SC_CLK_TCK")
        assert abs(started_s - began) < 5.0
        assert sight.state in {"R", "S", "D"}
    finally:
        child.kill()
        child.wait()
