"""`narwhal drain`: engines out of placement, until they may be stopped (narwhal/cli/lifecycle)."""

from narwhal.cli.lifecycle.command import drain as main

__all__ = ["main"]
