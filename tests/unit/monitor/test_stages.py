"""The stages of the shipped pass: which of them a router runs that owns nothing."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from narwhal import monitor
from narwhal.model.monitoring import STAGES


def stages() -> Iterator[type[Any]]:
    """Every class of the package that is one."""
    for module in iter_modules(monitor.__path__):
        found = import_module(f"{monitor.__name__}.{module.name}")
        for _, made in inspect.getmembers(found, inspect.isclass):
            if made.__module__ == found.__name__ and isinstance(getattr(made, "needs_control", None), bool):
                yield made


def test_a_standby_runs_only_telemetry() -> None:
    assert {stage.name: stage.needs_control for stage in stages()} == {
        "controller": True,
        "health": True,
        "drains": True,
        "rollover": True,
        "readmission": True,
        "liveness": True,
        "telemetry": False,
        "handoff": True,
    }
    assert {stage.name for stage in stages()} == set(STAGES)
