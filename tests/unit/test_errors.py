"""The exception tree is the drawn one, whole."""

from __future__ import annotations

import inspect
import re

import pytest

from narwhal import errors
from narwhal.errors import ConfigError, EngineError, EngineTimeout, NarwhalError, PoolExhausted

FAMILIES = {
    "RequestError", "CapacityError", "DeadlineError", "EngineError", "IdentityError", "StoreError",
    "ConfigError", "SavedStateError", "InvariantViolation",
}  # fmt: skip


def tree() -> dict[str, type[NarwhalError]]:
    return {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, NarwhalError) and kind is not NarwhalError
    }


@pytest.mark.parametrize("name", sorted(tree()))
def test_every_error_has_a_family_and_a_place_in_the_drawing(name: str) -> None:
    kind = tree()[name]
    assert FAMILIES & {one.__name__ for one in kind.__mro__}
    assert re.search(rf"\b{name}\b", errors.__doc__ or "")


def test_several_problems_of_a_configuration_are_told_together() -> None:
    error = ConfigError(["first", "second"])
    assert error.problems == ("first", "second")
    assert str(error) == "first\nsecond"
    assert ConfigError("only").problems == ("only",)


def test_only_timeouts_pick_504() -> None:
    timed_out = {name for name, kind in tree().items() if issubclass(kind, EngineError) and kind.timed_out}
    assert timed_out == {EngineTimeout.__name__, PoolExhausted.__name__}
