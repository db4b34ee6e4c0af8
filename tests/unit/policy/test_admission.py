"""The in-flight limit."""

from __future__ import annotations

from narwhal.policy.admission import Admission
from tests.support.settings import serving_settings


def test_the_limit_counts_the_request_itself():
    admission = Admission(serving_settings(max_connections=2))
    assert admission.admits(2)
    assert not admission.admits(3)


def test_a_given_concurrency_goes_before_the_pool_size():
    assert Admission(serving_settings(max_connections=2), max_concurrent=7).limit == 7


def test_the_mode_told_is_the_one_in_force():
    assert Admission(serving_settings(admission="predictive")).mode == "open"
