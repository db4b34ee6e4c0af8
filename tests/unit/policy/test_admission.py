"""The in-flight limit and the queue before it."""

from __future__ import annotations

from narwhal.policy.admission import Admission
from narwhal.policy.waiting_line import Ticket, WaitingLine
from tests.support.settings import serving_settings


def test_the_limit_counts_the_request_itself():
    admission = Admission(serving_settings(max_connections=2))
    assert admission.admits(2)
    assert not admission.admits(3)


def test_a_queue_takes_as_many_more():
    admission = Admission(serving_settings(max_connections=2, queue_capacity=3, queue_timeout_s=1.0))
    assert admission.admits(5)
    assert not admission.admits(6)
    line: WaitingLine[Ticket] = admission.line()
    assert (line.limit, line.capacity) == (2, 3)


def test_a_given_concurrency_goes_before_the_pool_size():
    assert Admission(serving_settings(max_connections=2), max_concurrent=7).limit == 7


def test_a_wait_is_bounded_by_the_queue_timeout_and_by_the_requests_deadline():
    admission = Admission(serving_settings(queue_timeout_s=5.0, request_timeout_s=60.0))
    assert admission.waits_until(100.0, arrived_at=100.0) == 105.0
    assert admission.waits_until(100.0, arrived_at=42.0) == 102.0


def test_the_mode_told_is_the_one_in_force():
    assert Admission(serving_settings(admission="predictive")).mode == "open"


def test_who_is_turned_away_is_told_both_numbers():
    assert Admission(serving_settings(max_connections=2)).full == "2 requests are in flight: the limit"
    full = Admission(serving_settings(max_connections=2, queue_capacity=3)).full
    assert full == "2 requests are in flight and 3 wait: the limit"
