"""`narwhal engine`: how an engine of the fleet is started, and its credential in files."""

from __future__ import annotations

from collections.abc import Sequence

from narwhal.cli.engine.command import main as _main


def main(argv: Sequence[str] | None = None) -> int:
    return _main(argv)
