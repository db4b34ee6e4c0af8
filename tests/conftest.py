"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Speed of the machine decides no test; slow generation is no fault of the code under test either.
settings.register_profile("narwhal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("narwhal")
