"""What holds for every test."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from hypothesis import HealthCheck, settings

# Speed of the machine decides no test; slow generation is no fault of the code under test either.
settings.register_profile("narwhal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("narwhal")


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
