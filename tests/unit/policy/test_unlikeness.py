"""What a standby differs in from the owner, and what of it forbids a takeover."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from narwhal.policy.unlikeness import Likeness, Unlikeness, compare, old_mirror

ENGINES = frozenset(("e0", "e1"))
PLAIN = Likeness("1.0", "a" * 64, "", engines=ENGINES)
CONTRACTED = replace(PLAIN, contract_digest="c" * 64)


@pytest.mark.parametrize("mine", [PLAIN, CONTRACTED])
def test_equal_routers_and_an_owner_that_tells_nothing_yet_have_no_drift(mine: Likeness) -> None:
    assert compare(mine, mine) == Unlikeness()
    assert compare(mine, Likeness(schema_version=0)) == Unlikeness()


@pytest.mark.parametrize(
    ("changes", "words", "plain_forbids", "contracted_forbids"),
    [
        ({"version": "2.0"}, "version 1.0, the owner's is 2.0", False, False),
        ({"config_digest": "b" * 64}, "(digest aaaaaaaa, the owner's bbbbbbbb)", False, False),
        ({"voters": "0123456789abcdef"}, "the voters of fail-safe mode differ", False, False),
        ({"schema_version": 2}, "schema version 1, the owner writes 2", True, True),
        ({"engines": frozenset(("e1", "e9"))}, "(only here: e0; only there: e9)", False, True),
        ({"contract_digest": "d" * 64}, "the engine contract differs", True, True),
        ({"contract_digest": ""}, "the engine contract differs", None, True),
    ],
)
def test_each_difference_is_told_and_only_some_forbid(
    changes: dict[str, Any], words: str, plain_forbids: bool | None, contracted_forbids: bool
) -> None:
    for mine, forbids in ((PLAIN, plain_forbids), (CONTRACTED, contracted_forbids)):
        if forbids is None:
            continue
        found = compare(mine, replace(mine, **changes))
        assert [words in sentence for sentence in found.sentences] == [True]
        assert found.forbids is forbids


def test_another_model_is_another_fleet_with_and_without_a_contract() -> None:
    for mine in (PLAIN, CONTRACTED):
        found = compare(replace(mine, model="m1"), replace(mine, model="m2"))
        assert ("m1" in found.sentences[0], "m2" in found.sentences[0]) == (True, True)
        assert (found.forbids, found.another_fleet) == (True, True)
        assert not compare(replace(mine, model="m1"), mine).another_fleet, "nobody told"
        assert not compare(mine, replace(mine, config_digest="b" * 64)).another_fleet


def test_the_sections_that_differ_are_named() -> None:
    mine = replace(PLAIN, section_digests={"slo": "1", "serving": "2", "engines": "3"})
    owner = replace(
        mine, config_digest="b" * 64, section_digests={"slo": "1", "serving": "9", "hardware": "4"}
    )
    (sentence,) = compare(mine, owner).sentences
    assert sentence.startswith(
        "the configuration differs from the owner's in engines, hardware, serving (dig"
    )
    (sentence,) = compare(mine, replace(owner, section_digests={})).sentences
    assert sentence.startswith("the configuration differs from the owner's (digest")


def test_many_engines_are_not_all_named() -> None:
    owner = replace(PLAIN, engines=ENGINES | {f"x{number}" for number in range(50)})
    (sentence,) = compare(PLAIN, owner).sentences
    assert sentence.endswith("(only there: x0, x1, x10, x11 ...)")


@pytest.mark.parametrize(("age_s", "told"), [(None, 0), (0.0, 0), (30.0, 0), (42.4, 1)])
def test_an_old_mirror_is_told(age_s: float | None, told: int) -> None:
    assert old_mirror(age_s, 30.0) == ("the mirror is 42 s old",) * told
