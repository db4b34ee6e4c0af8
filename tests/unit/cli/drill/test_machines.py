"""How a drill tells what became of a router's process."""

from __future__ import annotations

import sys
from pathlib import Path

from narwhal.cli.demo.machines import Site
from narwhal.cli.drill.machines import RouterMachine


def test_a_router_process_is_told_with_its_exit_status_or_signal(tmp_path: Path) -> None:
    site = Site(tmp_path)
    router = RouterMachine(site, "a", words=[])
    assert router.condition == "router a never ran"
    try:
        router.machine = site.start("a", sys.executable, "-c", "import time; time.sleep(60)")
        assert router.condition == f"router a runs (pid {router.pid})"
        router.machine.kill()
        router.machine.wait(10.0)
        assert router.condition == "router a was ended by SIGKILL"
        router.machine = site.start("a", sys.executable, "-c", "raise SystemExit(2)")
        router.machine.wait(10.0)
        assert router.condition == "router a ended with status 2"
    finally:
        site.close()
