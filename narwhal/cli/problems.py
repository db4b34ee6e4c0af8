"""How every command tells what is wrong with its usage or configuration."""

from __future__ import annotations

import sys

from narwhal.errors import ConfigError


def tell_problems(program: str, error: ConfigError) -> None:
    """One line each on standard error, without a traceback."""
    for problem in error.problems:
        print(f"{program}: {problem}", file=sys.stderr)
