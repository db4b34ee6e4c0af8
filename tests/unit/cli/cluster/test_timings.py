"""`narwhal cluster timings`: the relations, and the times that follow from them."""

from __future__ import annotations

import json

import pytest

from narwhal.cli.cluster import main
from narwhal.cli.cluster.timings import timings_document
from narwhal.model.settings import LeaseTimings


def takeover(document: dict[str, object], event: str) -> list[float]:
    events = document["events"]
    assert isinstance(events, list)
    (found,) = [row["takeover_s"] for row in events if row["event"].startswith(event)]
    return list(found)


def test_the_defaults_give_the_times_of_the_contract() -> None:
    document = timings_document(LeaseTimings())
    assert takeover(document, "host lost") == [4.0, 5.25]
    assert takeover(document, "process frozen") == [2.0, 2.5]
    assert document["unnoticed_outage_s"] == 2.5
    assert document["clock_rate_ratio"] == 1.25
    assert all(row["left"] <= row["right"] for row in document["relations"])


def test_times_follow_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--lease-ttl", "10", "--lease-renew-interval", "2", "--lease-safety-margin", "2"]
    assert main(["timings", "--json", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert takeover(document, "host lost") == [8.0, 10.25]
    assert document["longer_outage_adds_s"] == [10.0, 10.25]


def test_a_bad_set_is_refused_as_the_start_refuses_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timings", "--lease-ttl", "3"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "--lease-renew-interval + two attempts of 0.8 s must be ≤" in told.err


def test_the_environment_counts_as_it_does_for_a_router(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NARWHAL_LEASE_TTL", "8")
    assert main(["timings"]) == 0
    assert "T 8 s" in capsys.readouterr().out
