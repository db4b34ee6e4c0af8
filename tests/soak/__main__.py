"""Entry of `make soak`: `python -m tests.soak [--minutes 60] [--seed N] [--folder DIR] [--json PATH]`."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.soak.run import soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="of what happens in which order (random)")
    parser.add_argument("--folder", type=Path, default=None, help="keeps journals and records (temporary)")
    parser.add_argument("--json", type=Path, default=None, help="write the report there as well")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"soak: seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        report = soak(options.folder or Path(temporary) / "soak", seed, minutes=options.minutes)
    print(report.text())
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    return 1 if report.breaches else 0


if __name__ == "__main__":
    sys.exit(main())
