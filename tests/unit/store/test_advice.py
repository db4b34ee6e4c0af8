"""Which servers are refused and which are warned about."""

from __future__ import annotations

import pytest

from narwhal.store import advice

GOOD = {
    "redis_version": "7.0.15",
    "aof_enabled": "1",
    "maxmemory_policy": "noeviction",
    "connected_slaves": "0",
}


@pytest.mark.parametrize("version", ["6.2.0", "6.2.14", "7.0.15", "8.1", "10.0.1"])
def test_supported_versions_are_taken(version):
    assert advice.refusal(GOOD | {"redis_version": version}) == ""


@pytest.mark.parametrize("version", ["6.0.16", "5.0.7", "2.8", "", "dev"])
def test_older_and_unknown_versions_are_refused(version):
    assert "6.2 or later" in advice.refusal(GOOD | {"redis_version": version})


def test_a_cluster_is_refused():
    assert "Redis Cluster is not supported" in advice.refusal(GOOD | {"redis_mode": "cluster"})


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
def test_a_good_server_gets_no_warning(policy):
    assert advice.warnings(GOOD | {"maxmemory_policy": policy}) == ()


@pytest.mark.parametrize(
    ("change", "mends"),
    [
        ({"maxmemory_policy": "allkeys-lru"}, "set maxmemory-policy noeviction"),
        ({"aof_enabled": "0"}, "set appendonly yes"),
        ({"connected_slaves": "1"}, "set min-replicas-to-write 1"),
    ],
)
def test_each_risk_has_a_sentence_with_what_mends_it(change, mends):
    (sentence,) = advice.warnings(GOOD | change)
    assert mends in sentence


def test_replicas_that_are_waited_for_are_fine():
    assert advice.warnings(GOOD | {"connected_slaves": "2", "min_slaves_good_slaves": "2"}) == ()


def test_info_text_is_read_by_line():
    text = b"# Server\r\nredis_version:7.0.15\r\nos:Linux 6.1\r\n\r\nexecutable:/a:b\r\n"
    assert advice.parse_info(text) == {"redis_version": "7.0.15", "os": "Linux 6.1", "executable": "/a:b"}
