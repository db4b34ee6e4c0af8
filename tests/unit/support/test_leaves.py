from __future__ import annotations

from tests.support.leaves import Seen, leaves


def test_a_document_falls_into_dotted_leaves() -> None:
    document = {"a": 1, "b": {"c": None, "d": {}}, "e": [1, 2], "f": []}
    assert dict(leaves(document)) == {"a": 1, "b.c": None, "b.d": {}, "e": [1, 2], "f": []}


def test_keys_that_are_data_are_one_path_and_rows_of_a_list_too() -> None:
    document = {
        "resident": {"e0": {"prefill": 0}, "e1": {"prefill": 1}},
        "routers": [{"epoch": 1}, {"epoch": 2}],
    }
    seen = Seen()
    seen.show("state", document)
    assert seen.paths() == {"state.resident.*.prefill", "state.routers[].epoch"}
    assert seen.constant() == set()


def test_a_field_that_never_changes_is_told() -> None:
    seen = Seen()
    seen.show("state", {"served": 0, "schema": "narwhal.state"})
    seen.show("state", {"served": 1, "schema": "narwhal.state"})
    assert seen.constant() == {"state.schema"}
    assert seen.values("state.served") == {b"0", b"1"}


def test_a_collection_that_was_empty_and_then_was_not_has_changed() -> None:
    seen = Seen()
    seen.show("cluster", {"routers": [], "owner": None})
    seen.show("cluster", {"routers": [{"epoch": 1}], "owner": {"url": "http://a"}})
    assert seen.constant() == {"cluster.routers[].epoch", "cluster.owner.url"}
