"""Whole numbers as they are stored: what no router wrote is told from what one did.

`int()` alone takes signs, blanks, underscores and digits of other scripts, and has no upper end: what is
taken in without bounds is kept in checkpoints and shared memory, and sent to engines.
"""

from __future__ import annotations

import re

from narwhal.model.settings import LONGEST_TTL_S

MOST_EXACT = 2**53
"""The scripts count in doubles."""
MOST_REPLICAS = 10_000
MOST_TTL_MS = round(1000 * LONGEST_TTL_S)
_DIGITS = re.compile(r"[0-9]{1,20}")


class Damage(ValueError):
    """A value that no router wrote. `key` is the short name of the key that holds it, `what` says more; the
    value itself is not told, for it may be anything, a token too."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(f"{key}: {what}")
        self.key = key
        self.what = what


def whole(text: str, *, most: int = MOST_EXACT) -> int:
    """Raises ValueError on anything but an integer from 0 to `most`."""
    number = int(text) if _DIGITS.fullmatch(text) else -1
    if not 0 <= number <= most:
        raise ValueError(f"no integer from 0 to {most}")
    return number


def stored(key: str, text: str, *, field: str, most: int = MOST_EXACT) -> int:
    """The number in a field of a key. Raises Damage."""
    try:
        return whole(text, most=most)
    except ValueError as error:
        raise Damage(key, f"{field} is {error}") from None
