"""Watches which fields of JSON documents ever change: documents as dotted leaf paths with values seen.

Keys that name an engine, a pool or a router are data, not fields: `resident.e0.prefill` and
`resident.e1.prefill` are one path, `resident.*.prefill`. Rows of a list are one path too: `routers[].epoch`.
A list of plain values is one leaf.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

KEYED = {
    "resident",
    "http_pools",
    "roles",
    "ejections",
    "holds",
    "failures",
    "streaks",
    "inference_sources",
    "inference_holds",
    "health",
    "kv",
    "kv_ledger",
    "process_starts",
    "carried",
}
"""Fields whose keys are data."""


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of each leaf. Empty mappings and empty lists are leaves of their own."""
    if isinstance(value, Mapping) and value:
        keyed = path.rsplit(".", 1)[-1] in KEYED
        for key, inner in value.items():
            name = "*" if keyed else key
            yield from leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
        for row in value:
            yield from leaves(row, f"{path}[]")
    else:
        yield path, value


class Seen:
    """Distinct values by leaf path, over all documents that were shown."""

    def __init__(self) -> None:
        self._values: defaultdict[str, set[bytes]] = defaultdict(set)

    def show(self, name: str, document: Mapping[str, Any]) -> None:
        """Takes in one document; `name` is the first part of its paths."""
        for path, value in leaves(document):
            self._values[f"{name}.{path}"].add(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))

    def paths(self) -> set[str]:
        return set(self._values)

    def constant(self) -> set[str]:
        """Paths that were seen with one value only, and never with anything below them."""
        filled = {path.removesuffix("[]") for path in self._prefixes()}
        return {path for path, values in self._values.items() if len(values) == 1 and path not in filled}

    def _prefixes(self) -> Iterator[str]:
        for path in self._values:
            parts = path.split(".")
            yield from (".".join(parts[:length]) for length in range(1, len(parts)))

    def values(self, path: str) -> set[bytes]:
        return set(self._values.get(path, ()))
