"""Error replies: no answer, or a server that cannot be used."""

from __future__ import annotations

import pytest
from redis import exceptions as driver

from narwhal.errors import StoreProtocolError, StoreUnreachable
from narwhal.model.settings import StoreAddress
from narwhal.store.connection import RedisConnection
from narwhal.store.faults import ReplyKind, kind_of, translated

WRAPPED = (
    "Error running script (call to f_6b1bf486c81ceb7edf3c093f4a5b9b2a8c6b2c8e): @user_script:12: "
    "@user_script: 12: -{} something"
)


@pytest.mark.parametrize(
    "kind", ["READONLY", "NOREPLICAS", "OOM", "LOADING", "MASTERDOWN", "BUSY", "UNBLOCKED"]
)
def test_what_may_pass_is_no_answer_also_when_a_script_wraps_it(kind):
    for text in (f"{kind} something", WRAPPED.format(kind)):
        error = translated("lease_renew", driver.ResponseError(text))
        assert isinstance(error, StoreUnreachable)
        assert error.kind == kind
        assert str(error).startswith("lease_renew: ")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (driver.ReadOnlyError("You can't write against a read only replica."), "READONLY"),
        (driver.OutOfMemoryError("command not allowed"), "OOM"),
        (driver.BusyLoadingError("Redis is loading the dataset in memory"), "LOADING"),
    ],
)
def test_the_word_that_the_driver_takes_off_is_put_back(error, kind):
    translated_error = translated("x", error)
    assert translated_error.kind == kind
    assert kind in str(translated_error)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("NOPERM this user has no permissions", "refuses this user"),
        ("NOAUTH Authentication required.", "refuses this user"),
        ("MOVED 1 10.0.0.1:6379", "Redis Cluster is not supported"),
        ("WRONGTYPE Operation against a key", "WRONGTYPE"),
    ],
)
def test_what_will_not_go_away_by_itself_is_a_protocol_error(text, told):
    error = translated("x", driver.ResponseError(text))
    assert isinstance(error, StoreProtocolError)
    assert told in str(error)


def test_the_text_of_a_lost_connection_is_not_searched_for_words():
    assert kind_of(driver.ConnectionError("Error connecting to READONLY-host:6379")) is ReplyKind.OTHER


def test_a_sentinel_address_is_never_taken_for_the_server_itself():
    with pytest.raises(StoreProtocolError, match="Sentinel"):
        RedisConnection(StoreAddress(hosts=(("s", 26379),), service="main"))


def test_wait_on_a_server_that_was_demoted_means_that_the_master_is_elsewhere():
    error = driver.ResponseError("WAIT cannot be used with replica instances. Please also note that")
    assert kind_of(error) is ReplyKind.READONLY
    assert isinstance(translated("WAIT", error), StoreUnreachable)
