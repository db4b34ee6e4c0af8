"""Names of the keys of one cluster (cluster.md section 3). Every key carries the one hash tag."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SCRIPT_KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "lease_peek": ("lease", "epoch", "log"),
        "lease_claim": ("lease", "epoch"),
        "lease_acquire": ("lease", "epoch", "handoff", "log", "claims"),
        "lease_renew": ("lease", "epoch", "claims"),
        "lease_release": ("lease", "log"),
        "lease_depose": ("lease", "log"),
        "claim_put": ("lease", "claims"),
        "log_append": ("lease", "log"),
        "log_read": ("log",),
        "handoff_publish": ("lease", "handoff", "log"),
        "handoff_load": ("handoff",),
        "totals_flush": ("totals",),
        "router_announce": ("routers", "router:<id>"),
        "router_withdraw": ("routers", "router:<id>"),
        "router_list": ("routers",),
        "router_read": ("router:<id>...",),
    }
)
"""KEYS of each script, in order. `router:<id>` is appended by the caller."""


class Keys:
    """`narwhal:{<cluster>}:<name>`. The cluster name is checked by the configuration."""

    __slots__ = ("prefix",)

    def __init__(self, cluster: str) -> None:
        self.prefix = f"narwhal:{{{cluster}}}:"

    def __getitem__(self, name: str) -> str:
        return self.prefix + name

    def router(self, router_id: str) -> str:
        return f"{self.prefix}router:{router_id}"

    def of(self, script: str) -> list[str]:
        """The fixed keys of a script, in the order of its header."""
        return [self.prefix + name for name in SCRIPT_KEYS[script] if "<" not in name]
