"""How every command writes for people: as it is given. What engines, routers and systems say may hold square
brackets (`[Errno 111]`), which rich would take for its own markup."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console

PIPE_COLUMNS: Final = 200
"""Where nobody watches: a table in a pipe is cut by its reader, not by us."""


def plain_console(*, stderr: bool = False, soft_wrap: bool = False, width: int | None = None) -> Console:
    """`width` in columns; None: the terminal's, `PIPE_COLUMNS` where there is none."""
    watched = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(
        stderr=stderr,
        soft_wrap=soft_wrap,
        width=width or (None if watched else PIPE_COLUMNS),
        highlight=False,
        markup=False,
    )
