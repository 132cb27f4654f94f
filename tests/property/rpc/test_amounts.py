"""Amounts: text to integer and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.rpc.core.amounts import MAX_AMOUNT, AmountError, format_amount, parse_amount

if TYPE_CHECKING:
    from decimal import Decimal

bounded = settings(derandomize=True, deadline=None, max_examples=300, database=None)
slots = st.sampled_from(["cpu", "mem", "cuda.shares", "tpu"])
amounts = st.one_of(st.integers(1, MAX_AMOUNT), st.integers(1, 43).flatmap(lambda power: st.just(1 << power)))


@bounded
@given(slots, amounts)
def test_canonical_text_reads_back(slot: str, amount: int) -> None:
    text = format_amount(slot, amount)
    assert parse_amount(slot, text) == amount
    assert format_amount(slot, parse_amount(slot, text)) == text


@bounded
@given(st.integers(1, MAX_AMOUNT // 1000))
def test_devices_are_whole(number: int) -> None:
    assert parse_amount("cuda.device", str(number)) == number * 1000
    assert format_amount("cuda.device", number * 1000) == str(number)


@bounded
@given(st.decimals(min_value=0, max_value=10**6, places=3, allow_nan=False))
def test_thousandths_are_exact(number: Decimal) -> None:
    try:
        assert parse_amount("cpu", str(number)) == number * 1000
    except AmountError:
        assert number == 0 or "E" in str(number) or number.is_signed()


@bounded
@given(slots, st.one_of(st.text(max_size=60), st.text("0123456789.kKmMgiIbBeE+-_", max_size=60)))
def test_any_text_is_read_or_refused(slot: str, text: str) -> None:
    try:
        amount = parse_amount(slot, text)
    except AmountError:
        return
    assert 0 < amount <= MAX_AMOUNT
    assert parse_amount(slot, format_amount(slot, amount)) == amount


@bounded
@given(st.one_of(st.text(max_size=80), st.text("abz09.-", max_size=80)))
def test_any_slot_name_is_taken_or_refused(slot: str) -> None:
    try:
        parse_amount(slot, "1")
    except AmountError:
        return
    assert slot.isascii()
    assert slot[0].islower()
    assert len(slot) <= 63
