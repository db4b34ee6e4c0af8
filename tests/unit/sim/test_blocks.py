from __future__ import annotations

from narwhal.sim.blocks import BlockPool, HandoffLedger

ALICE, BOB = 1, 2


def test_blocks_are_counted_up_and_never_the_null_block() -> None:
    pool = BlockPool(8, 32)
    assert [pool.needed(tokens) for tokens in (0, 1, 32, 33)] == [1, 1, 1, 2]
    assert pool.allocate(8, ALICE) == tuple(range(1, 9))
    assert pool.allocate(1, BOB) is None
    assert pool.used == pool.total == 8


def test_freed_blocks_keep_their_content_until_somebody_writes_there() -> None:
    pool = BlockPool(2, 32)
    blocks = pool.allocate(2, ALICE) or ()
    pool.release(blocks)
    assert pool.hold_mark(blocks, ALICE)
    pool.allocate(1, BOB)
    assert not pool.hold_mark(blocks, ALICE)


def test_a_block_that_does_not_exist_holds_nothing() -> None:
    pool = BlockPool(2, 32)
    pool.allocate(2, ALICE)
    assert not pool.hold_mark((0,), ALICE)
    assert not pool.hold_mark((3,), ALICE)


def test_a_pull_frees_the_blocks_once() -> None:
    pool = BlockPool(2, 32)
    ledger = HandoffLedger(pool, 30.0)
    ledger.hold("a", pool.allocate(1, ALICE) or (), now=0.0)
    assert ledger.consume("a")
    assert not ledger.consume("a")
    assert (pool.used, ledger.pulled, len(ledger)) == (0, 1, 0)


def test_an_unpulled_prefill_is_freed_at_the_end_of_its_lease() -> None:
    pool = BlockPool(2, 32)
    ledger = HandoffLedger(pool, 30.0)
    ledger.hold("a", pool.allocate(1, ALICE) or (), now=0.0)
    ledger.hold("b", pool.allocate(1, BOB) or (), now=10.0)
    assert ledger.expire(29.9) == 30.0
    assert pool.used == 2
    assert ledger.expire(30.0) == 40.0
    assert (pool.used, ledger.expired) == (1, 1)
    assert not ledger.consume("a")
    assert ledger.expire(40.0) is None
