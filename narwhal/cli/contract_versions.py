"""What this version agrees on with others: documents by their schema version, engines by their build."""

from __future__ import annotations

from typing import Any, Final

from narwhal import __version__
from narwhal.config import profiles, samples, schema, show
from narwhal.model import attestation, handoff
from narwhal.model.verified import VERIFIED

SCHEMA: Final = "narwhal.contract-versions"
SCHEMA_VERSION: Final = 1

DOCUMENTS: Final = {
    schema.SCHEMA: schema.SCHEMA_VERSION,
    profiles.SCHEMA: profiles.VERSION,
    samples.SCHEMA: samples.SCHEMA_VERSION,
    attestation.SCHEMA: attestation.SCHEMA_VERSION,
    handoff.HANDOFF_SCHEMA: handoff.SCHEMA_VERSION,
    show.SCHEMA: show.SCHEMA_VERSION,
    "narwhal.lifecycle": 1,
    "narwhal.state": 1,
    "narwhal.journal": 1,
    "narwhal.cluster": 1,
    "narwhal.check": 1,
}
"""Schema name to the version that is written and read."""


def contract_versions() -> dict[str, Any]:
    """`engines`: builds that the dialect and connector of that name were recorded from and tried with."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "narwhal": __version__,
        "engines": [dict(build) for build in VERIFIED],
        "documents": DOCUMENTS,
    }
