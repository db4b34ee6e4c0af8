"""What is told while something is waited for: one living line on a terminal, else a line for each change.

It goes to standard error: standard output has the verdict, or the document for programs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.text import Text

from narwhal.cli.asking import Document
from narwhal.cli.lifecycle.verdict import Targets, progress
from narwhal.cli.terminal import plain_console

Tell = Callable[[str], None]


@contextmanager
def telling(program: str) -> Iterator[Tell]:
    """Takes what is to be told; the same line twice is told once."""
    screen = plain_console(stderr=True)
    if screen.is_terminal:
        with screen.status(program) as status:
            yield lambda line: status.update(Text(line))
        return
    last = [""]

    def tell(line: str) -> None:
        if line != last[0]:
            print(f"{program}: {line}", file=sys.stderr, flush=True)
        last[0] = line

    yield tell


def progress_line(targets: Targets, document: Document) -> str:
    """How far every target is. Seconds that run down are for terminals only."""
    return progress(targets, document, countdown=sys.stderr.isatty())
