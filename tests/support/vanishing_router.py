"""`narwhal-serve` whose router ends without a word a second after it has begun to listen: `os._exit(42)`."""

from __future__ import annotations

import os
import sys
import threading

from narwhal.cli.serve import main
from narwhal.runtime.warden import ward

STATUS = 42


class Vanishing(ward.Ward):
    """The ward of that router: this runs in its process only."""

    def ready(self) -> None:
        super().ready()
        threading.Timer(1.0, os._exit, (STATUS,)).start()


if __name__ == "__main__":
    from narwhal.runtime.warden import parent

    parent.Ward = Vanishing  # type: ignore[misc]
    sys.exit(main())
