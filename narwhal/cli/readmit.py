"""`narwhal readmit`: drained engines are checked and serve again (narwhal/cli/lifecycle)."""

from narwhal.cli.lifecycle.command import readmit as main

__all__ = ["main"]
