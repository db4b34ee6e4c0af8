"""`narwhal-serve`: one router. Exit status 0 clean, 1 crashed, 2 wrong usage, 3 incompatible saved state."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from narwhal.config.start import read_start
from narwhal.errors import ConfigError, SavedStateError
from narwhal.runtime.process import WRONG_STATE, WRONG_USE, serve

PROGRAM = "narwhal-serve"


def main(argv: Sequence[str] | None = None) -> int:
    """Problems go to standard error, one line each, without a traceback."""
    words = sys.argv[1:] if argv is None else argv
    try:
        return serve(read_start(words, os.environ, program=PROGRAM), os.environ)
    except ConfigError as error:
        for problem in error.problems:
            print(f"{PROGRAM}: {problem}", file=sys.stderr)
        return WRONG_USE
    except SavedStateError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return WRONG_STATE


if __name__ == "__main__":
    sys.exit(main())
