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
    ("changes", "place", "wanted", "found"),
    [
        (
            {"router": {"controls_fleet": 1, "role": "", "epoch": 0}},
            *("router.controls_fleet", "true or false", "1"),
        ),
        ({"router": []}, "router", "an object", "[]"),
        ({"engines": {}}, "engines", "an object with entries", "{}"),
        ({"engines": {"e0": row(deadline_in_s="5")}}, "engines.e0.deadline_in_s", "a finite number", "'5'"),
        (
            {"engines": {"e0": row(deadline_in_s=10**400)}},
            *("engines.e0.deadline_in_s", "a finite number", f"{10**400!r:.80}"),
        ),
        (
            {"engines": {"e0": row(resident={"prefill": 0})}},
            *("engines.e0.resident.decode", "an integer from 0 to 2^53", "missing"),
        ),
        ({"engines": {"e0": row(checks=["health"])}}, "engines.e0.checks[0]", "an object", "'health'"),
        ({"engines": {"e0": row(checks="x")}}, "engines.e0.checks", "a list", "'x'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    changes: dict[str, Any], place: str, wanted: str, found: str
) -> None:
    told = LIFECYCLE.wrong(lifecycle_document(e0=row()) | changes)
    assert told == f"{place} must be {wanted}, not {found}"


def test_another_schema_is_another_document() -> None:
    told = LIFECYCLE.wrong(lifecycle_document(e0=row()) | {"schema": "narwhal.state"})
    assert told == "schema is not narwhal.lifecycle"


def test_what_only_the_store_tells_is_not_taken_from_a_router() -> None:
    told = CLUSTER.wrong(cluster_document() | {"claims": [5]})
    assert told == "claims must be left to the store's own records, not [5]"
    assert CLUSTER.wrong([]) == "no JSON object"
