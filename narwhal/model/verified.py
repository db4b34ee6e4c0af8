"""Engine builds against which the dialects and connectors were recorded and tried."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

VERIFIED: Final[tuple[Mapping[str, Any], ...]] = (
    MappingProxyType(
        {
            "dialect": "vllm",
            "connector": "nixl",
            "vllm_version": "0.32.0",
            "nixl_version": "1.5.1",
            "nixl_connector_version": 14,
        }
    ),
)
"""`nixl_connector_version`: of the connector's own protocol, which peers compare in their handshake."""
