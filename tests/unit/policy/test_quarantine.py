"""What brings a quarantine and is taken back from it: the latest end of the rest, and bounded memory."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from narwhal.model.evidence import FailureClass
from narwhal.policy.quarantine import MOST, OWN, Account, Cause, OfKv, OfRequest, Quarantine

REQUESTS = [OfRequest(b"1", "stream:x"), OfRequest(b"2", "stream:x")]
KVS = [OfKv("p0", FailureClass.STREAM), OfKv("p1", FailureClass.STREAM)]
CAUSES = [OWN, *(Cause(request, kv) for request in (None, *REQUESTS) for kv in (None, *KVS))]


def test_one_failure_may_be_on_the_account_of_its_request_or_of_its_kv() -> None:
    for account in (REQUESTS[0], KVS[0]):
        quarantine = Quarantine()
        quarantine.bring(Cause(REQUESTS[0], KVS[0]), 5.0, reason="it broke")
        assert (quarantine.until, quarantine.reason) == (5.0, "it broke")
        assert quarantine.take_back(account)
        assert (quarantine.until, quarantine.reason) == (-inf, "")


def test_a_cause_that_asks_again_keeps_its_reason_and_the_later_end() -> None:
    quarantine = Quarantine()
    for until in (5.0, 7.0, 6.0):
        quarantine.bring(OWN, until, reason=f"until {until:g}")
    assert (quarantine.until, quarantine.reason, len(quarantine)) == (7.0, "until 5", 1)


def test_of_more_requests_than_are_remembered_the_oldest_are_known_by_their_kv_only() -> None:
    quarantine = Quarantine()
    requests = [OfRequest(b"%d" % number, "stream:x") for number in range(3 * MOST)]
    for number, request in enumerate(requests):
        quarantine.bring(Cause(request, KVS[number % 2]), float(number), reason=f"{number}")
        assert len(quarantine) <= MOST + 2
    assert quarantine.reason in ("0", "1")
    assert not quarantine.take_back(requests[0]), "nobody knows any longer"
    assert not quarantine.take_back(requests[-1])
    assert quarantine.until == len(requests) - 2
    assert not quarantine.take_back(KVS[0])
    assert quarantine.until == len(requests) - 3
    assert quarantine.take_back(KVS[1])


def test_a_cause_that_asks_for_ever_takes_no_room() -> None:
    quarantine = Quarantine()
    for number in range(10_000):
        quarantine.bring(OWN, float(number), reason="it broke")
    assert len(quarantine._ends) < 100


steps = st.one_of(st.tuples(st.sampled_from(CAUSES), st.integers(0, 9)), st.sampled_from([*REQUESTS, *KVS]))


@given(st.lists(steps, max_size=60))
def test_it_lasts_to_the_latest_end_of_what_was_not_taken_back(
    done: list[tuple[Cause, int] | Account],
) -> None:
    quarantine, left = Quarantine(), dict[Cause, tuple[int, str]]()
    for number, one in enumerate(done):
        if isinstance(one, OfRequest | OfKv):
            left = {cause: asked for cause, asked in left.items() if one not in cause}
            assert quarantine.take_back(one) is not bool(left)
        else:
            cause, until = one
            before = left.get(cause, (until, f"{number}"))
            left[cause] = (max(before[0], until), before[1])
            quarantine.bring(cause, float(until), reason=f"{number}")
        ends = [until for until, _ in left.values()]
        assert quarantine.until == max(ends, default=-inf)
        assert quarantine.reason == next((reason for _, reason in left.values()), "")
