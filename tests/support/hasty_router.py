"""`narwhal-serve` with one rule broken on purpose: it takes a lease after half the watch. For drills only."""

from __future__ import annotations

import sys
from functools import partial

from narwhal.cli.serve import main
from narwhal.runtime import control
from tests.support.broken_rules import HalfTheWatch

if __name__ == "__main__":
    control.Surroundings = partial(control.Surroundings, election=HalfTheWatch)  # type: ignore[misc,assignment]
    sys.exit(main())
