"""Plays the procedure in the head of configs/compose.lifecycle.yml: `... compose_maintenance FOLDER`.

Inside a network namespace of its own, with one router and what it needs. Prints what the commands said.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.support.compose import LIVENESS_S, Compose

OVER = "configs/compose.lifecycle.yml"
ENV = {"NARWHAL_CONTROL_KEY": "opensesame-opensesame"}


def serves(compose: Compose) -> bool:
    return "told by the owner" in compose.run("operator", "narwhal", "lifecycle").stdout


def play(compose: Compose) -> None:
    deadline = time.monotonic() + LIVENESS_S
    while not serves(compose):
        assert time.monotonic() < deadline, "the router never owned the fleet"
    for words in ("drain e3 --wait", "readmit e3", "", "readmit e3 --wait", "lifecycle"):
        if not words:
            compose.restart("engine-3")
            continue
        done = compose.run("operator", "narwhal", *words.split())
        print(f"$ narwhal {words}\n{done.stdout}{done.stderr}status {done.returncode}", flush=True)


def main(folder: str) -> None:
    compose = Compose(Path(folder), OVER, env=ENV)
    compose.lay_out()
    try:
        for service in compose.in_order(compose.needed_by("router-a")):
            compose.start(service.name)
            compose.wait_healthy(service.name)
        play(compose)
    finally:
        compose.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
