from __future__ import annotations

import pytest

from narwhal.sim.faults import HANDOFF_VARIANTS
from narwhal.sim.handoff import Side, descriptor, read_descriptor, spoil

SIDE = Side("engine", "127.0.0.1", 18751)
GOOD = descriptor(SIDE, "cmpl-rid-0-862da6b6", blocks=(6, 7, 8), tokens=90)
STILL_READABLE = {"few_blocks", "not_remote_prefill", "unknown_engine", "dead_port"}


def test_a_descriptor_is_read_as_it_was_made() -> None:
    kv = read_descriptor(GOOD)
    assert kv is not None
    assert (kv.side, kv.request_id, kv.blocks) == (SIDE, "cmpl-rid-0-862da6b6", (6, 7, 8))


@pytest.mark.parametrize("variant", HANDOFF_VARIANTS)
def test_every_variant_spoils_the_descriptor(variant: str) -> None:
    spoilt = spoil(dict(GOOD), variant).get("kv_transfer_params")
    assert spoilt != GOOD
    readable = isinstance(spoilt, dict) and read_descriptor(spoilt) is not None
    assert readable == (variant in STILL_READABLE)
