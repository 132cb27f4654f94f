"""Small data that waits while much goes the other way, parts of long transfers that do, and data that never does."""

from __future__ import annotations

import pytest

from retinue.rpc.acknowledgements import BULK, LONG, SMALL, Acknowledgements


async def test_little_waits_beside_much() -> None:
    confirmed = Acknowledgements()
    assert not await confirmed.gather(1), "nothing was carried"
    confirmed.carried(BULK)
    assert await confirmed.gather(1)
    assert not await confirmed.gather(1), "nothing since"


@pytest.mark.parametrize("count", [0, SMALL, BULK])
async def test_ends_and_much_never_wait(count: int) -> None:
    confirmed = Acknowledgements()
    confirmed.carried(2 * BULK)
    assert not await confirmed.gather(count)


async def test_a_connection_that_carries_little_never_waits() -> None:
    confirmed = Acknowledgements()
    for _ in range(BULK // SMALL - 1):
        confirmed.carried(SMALL)
        assert not await confirmed.gather(16)


async def test_parts_of_long_transfers_wait_for_the_rest() -> None:
    confirmed, most = Acknowledgements(), 16 * SMALL
    assert not await confirmed.gather(SMALL, most), "nothing was sent"
    assert not await confirmed.gather(LONG, LONG), "it fills a message"
    assert await confirmed.gather(SMALL, most)
    assert not await confirmed.gather(most // 2 + 1, most), "it nearly fills one"
    assert not await confirmed.gather(SMALL - 1, most), "the end of something"
