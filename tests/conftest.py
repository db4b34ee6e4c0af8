"""What holds for every test."""

from __future__ import annotations

import asyncio
import inspect
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Speed of the machine decides no test; slow generation is no fault of the code under test either.
settings.register_profile("narwhal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("narwhal")


SPLIT = ("simulation/test_seeds.py",)
"""Files whose tests share nothing: each may run on any worker. The tests of other files stay together."""
LONGEST = (
    "soak/test_soak.py",
    "drills/test_rows.py",
    "drills/test_balancer.py",
    "drills/test_warden.py",
    "drills/test_store_faults.py",
    "drills/test_store_failover.py",
    "integration/test_compose_run.py",
    "integration/test_cluster_command.py",
    "drills/test_handover.py",
    "integration/test_bad_input.py",
    "integration/test_no_false_verdicts.py",
    "integration/test_fault_switches.py",
    "drills/test_engine_fence.py",
    "integration/test_hardly_anybody_left.py",
    "integration/test_client_aborts.py",
    "contract/test_confirmed_writes.py",
    "simulation/test_seeds.py",
    "simulation/test_rules.py",
)
"""What workers begin with, so that none is left with something long at the end."""


def file_of(nodeid: str) -> str:
    """Its path below `tests`."""
    return nodeid.partition("::")[0].removeprefix("tests/")


def pytest_configure() -> None:
    """What a shell starts in the background ignores SIGINT, and so would all that the tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a worker of `pytest -n`: the longest files first."""
    if hasattr(config, "workerinput"):
        order = {file: at for at, file in enumerate(LONGEST)}
        items.sort(key=lambda item: order.get(file_of(item.nodeid), len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `pytest -n`: whole files to workers, as `--dist loadfile` does, but for those of SPLIT. (Groups by
    mark do not work: pytest 9 does not read the name that xdist 3.8 gives an item.)"""
    from xdist.scheduler import LoadScopeScheduling

    class WholeFiles(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if file_of(nodeid) in SPLIT else file_of(nodeid)

    config.option.loadscopereorder = False
    return WholeFiles(config, log)


LIVENESS_S = 120.0
"""A test that waits this long on its loop hangs."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs `async def` tests on a loop of their own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), LIVENESS_S))
    return True
