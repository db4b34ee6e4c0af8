"""The epoch fence of an engine: which request is stale, and what a header value can do at worst."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.fence import MAX_EPOCH, MOST_CLUSTERS, Epochs

ROOT = Path(__file__).resolve().parents[2]


def test_a_lower_epoch_is_stale_and_told_by_which() -> None:
    epochs = Epochs()
    assert epochs.superseded_by(b"demo/7", b"prefill") is None
    assert epochs.superseded_by(b"demo/6", b"prefill") == 7
    assert epochs.superseded_by(b"demo/6", b"probe") == 7
    assert epochs.superseded_by(b"demo/6", b"") == 7
    assert epochs.superseded_by(b"demo/7", b"prefill") is None
    assert epochs.superseded_by(b"demo/9", b"probe") is None
    assert epochs.highest == {"demo": 9}


def test_clusters_are_never_compared_with_one_another() -> None:
    epochs = Epochs()
    assert epochs.superseded_by(b"demo/9", b"prefill") is None
    assert epochs.superseded_by(b"other/1", b"prefill") is None
    assert epochs.superseded_by(b"a/b/1", b"prefill") is None
    assert epochs.highest == {"demo": 9, "other": 1, "a/b": 1}


def test_decode_legs_pass_and_raise_nothing() -> None:
    epochs = Epochs()
    assert epochs.superseded_by(b"demo/9", b"decode") is None
    assert epochs.highest == {}
    assert epochs.superseded_by(b"demo/9", b"prefill") is None
    assert epochs.superseded_by(b"demo/3", b"decode") is None
    assert epochs.highest == {"demo": 9}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"demo",
        b"demo/",
        b"/7",
        b"/",
        b"demo/-1",
        b"demo/+1",
        b"demo/1.5",
        b"demo/1e3",
        b"demo/0x10",
        b"demo/ 7",
        b"demo/7_0",
        b"demo/\xb2",
        b"demo/" + str(MAX_EPOCH + 1).encode(),
        b"demo/" + b"9" * 200,
        b"demo/" + b"9" * 100_000,
        b"d" * 300 + b"/1",
        b"\xff\xfe\x00",
        b"demo/7, demo/9",
    ],
)
def test_what_cannot_be_read_passes_and_raises_nothing(value: bytes) -> None:
    epochs = Epochs()
    epochs.superseded_by(b"demo/5", b"prefill")
    assert epochs.superseded_by(value, b"prefill") is None
    assert epochs.highest == {"demo": 5}


def test_the_greatest_epoch_counts_and_one_more_does_not() -> None:
    epochs = Epochs()
    assert epochs.superseded_by(f"demo/{MAX_EPOCH}".encode(), b"prefill") is None
    assert epochs.superseded_by(f"demo/{MAX_EPOCH - 1}".encode(), b"prefill") == MAX_EPOCH
    assert epochs.superseded_by(f"demo/{MAX_EPOCH + 1}".encode(), b"prefill") is None


def test_a_flood_of_cluster_names_does_not_push_out_the_one_in_use() -> None:
    epochs = Epochs()
    epochs.superseded_by(b"demo/9", b"probe")
    for number in range(1000):
        assert epochs.superseded_by(f"flood-{number}/1".encode(), b"prefill") is None
        assert epochs.superseded_by(b"demo/8", b"prefill") == 9
    assert len(epochs.highest) == MOST_CLUSTERS


@given(st.binary(max_size=400), st.binary(max_size=40))
def test_no_bytes_break_it(value: bytes, leg: bytes) -> None:
    epochs = Epochs()
    assert epochs.superseded_by(value, leg) is None
    assert len(epochs.highest) <= 1


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 20))))
def test_stale_is_exactly_what_is_below_the_highest_before_it(sent: list[tuple[bytes, int]]) -> None:
    epochs, highest = Epochs(), {b"a": 0, b"b": 0}
    for cluster, epoch in sent:
        stale = epochs.superseded_by(b"%b/%d" % (cluster, epoch), b"prefill")
        assert stale == (highest[cluster] if epoch < highest[cluster] else None)
        highest[cluster] = max(highest[cluster], epoch)


def test_threads_lose_no_epoch() -> None:
    epochs = Epochs()

    def raise_it(start: int) -> None:
        for epoch in range(start, 8000, 8):
            epochs.superseded_by(b"demo/%d" % epoch, b"prefill")

    threads = [threading.Thread(target=raise_it, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert epochs.highest == {"demo": 7999}


def test_it_needs_the_standard_library_only() -> None:
    """An engine's environment has no package of the router's: -S leaves out all that is installed."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import narwhal.fence\n"
        "print(sorted(name for name in sys.modules if name.startswith('narwhal')))"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "['narwhal', 'narwhal.fence']"
