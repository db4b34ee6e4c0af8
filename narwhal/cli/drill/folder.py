"""Where the processes of a drill leave logs and files: kept when something did not hold, or on demand."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

INTERRUPTED: Final = (KeyboardInterrupt, asyncio.CancelledError)


@dataclass(slots=True)
class Folder:
    """`held`: every promise held, so nobody needs what is in there."""

    path: Path
    held: bool = False


@contextmanager
def kept_on_failure(named: str | None, say: Callable[[str], None]) -> Iterator[Folder]:
    """A folder of the user's, which stays; without one a new folder that goes if all held, or if the drill
    is interrupted, and else stays and is named."""
    folder = Folder(Path(named or tempfile.mkdtemp(prefix="narwhal-drill-")))
    interrupted = False
    try:
        yield folder
    except INTERRUPTED:
        interrupted = True
        raise
    finally:
        if not named and (folder.held or interrupted):
            shutil.rmtree(folder.path, ignore_errors=True)
        elif not folder.held:
            say(f"Logs and files of all processes are in {folder.path}")
