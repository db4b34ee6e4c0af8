"""What an engine's `GET /v1/models` tells."""

from __future__ import annotations

from collections.abc import Mapping

import orjson


def read_models(body: bytes) -> Mapping[str, int | None]:
    """Model ID to the longest context in tokens, None where that is not told; empty for a list that
    cannot be read. Of two entries with one ID the first that tells a length counts."""
    try:
        rows = [(row["id"], row.get("max_model_len")) for row in orjson.loads(body)["data"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    models: dict[str, int | None] = {}
    for name, length in rows:
        if isinstance(name, str) and models.get(name) is None:
            models[name] = length if type(length) is int and length > 0 else None
    return models
