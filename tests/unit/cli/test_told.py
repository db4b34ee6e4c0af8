"""What commands ask of a router's document before they read it: place and want of what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from narwhal.cli.told import CLUSTER, LIFECYCLE
from tests.support.lifecycle import cluster_document, lifecycle_document, row


def test_a_routers_own_documents_are_taken_also_with_more_in_them() -> None:
    assert (
        LIFECYCLE.wrong(lifecycle_document(e0=row(deadline_in_s=None), e1=row(news=1)) | {"more": []}) == ""
    )
    assert CLUSTER.wrong(cluster_document() | {"more": 1}) == ""


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"schema": "narwhal.state"}, "schema is not narwhal.lifecycle"),
        (
            {"router": {"controls_fleet": 1, "role": "", "epoch": 0}},
            "router.controls_fleet is not true or false",
        ),
        ({"router": []}, "router is no object"),
        ({"engines": {}}, "engines has no entries"),
        ({"engines": {"e0": row(deadline_in_s="5")}}, "engines.e0.deadline_in_s is not a number or null"),
        ({"engines": {"e0": row(deadline_in_s=10**400)}}, "engines.e0.deadline_in_s is not a number or null"),
        ({"engines": {"e0": row(resident={"prefill": 0})}}, "engines.e0.resident.decode is missing"),
        ({"engines": {"e0": row(checks=["health"])}}, "engines.e0.checks[0] is no object"),
        ({"engines": {"e0": row(checks="x")}}, "engines.e0.checks is no list"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(changes: dict[str, Any], wrong: str) -> None:
    assert LIFECYCLE.wrong(lifecycle_document(e0=row()) | changes) == wrong


def test_what_only_the_store_tells_is_not_taken_from_a_router() -> None:
    assert (
        CLUSTER.wrong(cluster_document() | {"claims": [5]}) == "claims is not left to the store's own records"
    )
    assert CLUSTER.wrong([]) == "no JSON object"
