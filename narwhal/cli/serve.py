"""`narwhal-serve`: one router. Exit status 0 clean, 1 crashed, 2 wrong usage, 3 incompatible saved state.

What a process needs is loaded when it is known to need it: with a store the router is a child of a small
parent, which must not carry the router's libraries.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence

from narwhal.cli.problems import tell_problems
from narwhal.config.start import Start, read_start
from narwhal.errors import ConfigError, SavedStateError
from narwhal.runtime.exit_status import WRONG_STATE, WRONG_USE
from narwhal.runtime.warden.supervisor import Supervisor

PROGRAM = "narwhal-serve"


def main(argv: Sequence[str] | None = None) -> int:
    """Problems go to standard error, one line each, without a traceback."""
    words = sys.argv[1:] if argv is None else argv
    # Until router and warden run: all that a start makes stays, and looking through it takes a tenth of it.
    gc.disable()
    try:
        return _run(read_start(words, os.environ, program=PROGRAM))
    except ConfigError as error:
        tell_problems(PROGRAM, error)
        return WRONG_USE
    except SavedStateError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return WRONG_STATE
    finally:
        gc.enable()


def _run(start: Start) -> int:
    if start.options.store is None or start.options.no_warden:
        return _route(start, os.environ)
    from narwhal.runtime.warden.parent import guarded

    def router(ward: Supervisor, env: Mapping[str, str]) -> int:
        return _route(start, env, ward=ward)

    return guarded(start.options, os.environ, router=router)


def _route(start: Start, env: Mapping[str, str], *, ward: Supervisor | None = None) -> int:
    from narwhal.runtime.process import serve

    return serve(start, env, supervisor=ward)


if __name__ == "__main__":
    sys.exit(main())
