"""Amounts: what is accepted, what is refused, and with which words."""

from __future__ import annotations

import pytest

from retinue.rpc.core.amounts import MAX_AMOUNT, AmountError, format_amount, parse_amount, parse_asked


@pytest.mark.parametrize(
    ("slot", "text", "amount", "canonical"),
    [
        ("cpu", "2", 2000, "2"),
        ("cpu", "0.5", 500, "0.5"),
        ("cpu", "0.001", 1, "0.001"),
        ("cpu", "1.500000", 1500, "1.5"),
        ("cpu", "007", 7000, "7"),
        ("cpu", ".5", 500, "0.5"),
        ("cpu", "5.", 5000, "5"),
        ("cpu", "500m", 500, "0.5"),
        ("cpu", "1500m", 1500, "1.5"),
        ("cpu", "250.0M", 250, "0.25"),
        ("cpu", "1e3", 1_000_000, "1000"),
        ("cpu", "1.5E+1", 15_000, "15"),
        ("cuda.device", "2000m", 2000, "2"),
        ("mem", "129e6", 129_000_000, "129000000"),
        ("mem", "1.5e3", 1500, "1500"),
        ("mem", ".5g", 512 << 20, "512m"),
        ("mem", "1.G", 1 << 30, "1g"),
        ("cuda.shares", "0.25", 250, "0.25"),
        ("cuda.device", "3", 3000, "3"),
        ("cuda.device", "3.0", 3000, "3"),
        ("mem", "1", 1, "1"),
        ("mem", "1b", 1, "1"),
        ("mem", "1k", 1024, "1k"),
        ("mem", "1000", 1000, "1000"),
        ("mem", "512m", 512 << 20, "512m"),
        ("mem", "1024m", 1 << 30, "1g"),
        ("mem", "4G", 4 << 30, "4g"),
        ("mem", "4GiB", 4 << 30, "4g"),
        ("mem", "4gb", 4 << 30, "4g"),
        ("mem", "8Gi", 8 << 30, "8g"),
        ("mem", "1.5g", 1536 << 20, "1536m"),
        ("mem", "2T", 2 << 40, "2t"),
        ("mem", "8P", MAX_AMOUNT, "8p"),
        ("disk", "20g", 20 << 30, "20g"),
        ("disk", "1536M", 1536 << 20, "1536m"),
        ("disk", "1.5T", 1536 << 30, "1536g"),
        ("cpu", "9007199254740.992", MAX_AMOUNT, "9007199254740.992"),
    ],
)
def test_reads_and_writes(slot: str, text: str, amount: int, canonical: str) -> None:
    assert parse_amount(slot, text) == amount
    assert format_amount(slot, amount) == canonical


@pytest.mark.attack("odd-amounts")
@pytest.mark.parametrize(
    ("slot", "text", "words"),
    [
        ("cpu", "", "empty"),
        ("cpu", "0", "above 0"),
        ("cpu", "0.000", "above 0"),
        ("mem", "0g", "above 0"),
        ("cpu", "-1", "positive decimal"),
        ("cpu", "+1", "positive decimal"),
        ("cpu", "nan", "positive decimal"),
        ("cpu", "inf", "positive decimal"),
        ("cpu", "1_000", "positive decimal"),
        ("cpu", " 1", "positive decimal"),
        ("cpu", "1\n", "positive decimal"),
        ("cpu", "1,5", "positive decimal"),
        ("cpu", "0x10", "positive decimal"),
        ("cpu", ".", "positive decimal"),
        ("cpu", "m", "positive decimal"),
        ("cpu", "1e-3", "positive decimal"),
        ("cpu", "1e", "positive decimal"),
        ("cpu", "1e3m", "positive decimal"),
        ("cpu", "1u", "positive decimal"),
        ("cpu", "0.5m", "3 decimal places"),
        ("cpu", "1e99", "larger than"),
        ("cuda.device", "500m", "whole number"),
        ("cpu", "٣", "positive decimal"),
        ("cpu", "2k", "positive decimal"),
        ("cpu", "0.0005", "3 decimal places"),
        ("cpu", "9007199254740.993", "larger than"),
        ("cpu", "9" * 41, "longer than 40"),
        ("cuda.device", "1.5", "whole number"),
        ("cuda.device", "9007199254741", "larger than 9007199254740"),
        ("mem", "-1g", "positive number of bytes"),
        ("mem", "1x", "positive number of bytes"),
        ("mem", "1i", "positive number of bytes"),
        ("mem", "g", "positive number of bytes"),
        ("mem", "1e3k", "positive number of bytes"),
        ("mem", "1Ei", "positive number of bytes"),
        ("mem", "1 g", "positive number of bytes"),
        ("mem", "Infinity", "positive number of bytes"),
        ("mem", "0.5", "whole number of bytes"),
        ("mem", "9p", "larger than 8p"),
    ],
)
def test_refuses(slot: str, text: str, words: str) -> None:
    with pytest.raises(AmountError, match=words):
        parse_amount(slot, text)


@pytest.mark.parametrize("slot", ["", "CPU", "1cpu", "cpu_x", "cpu x", ".cpu", "cpu\n", "c" * 64, "größe"])
def test_refuses_slot_names(slot: str) -> None:
    with pytest.raises(AmountError, match="slot name"):
        parse_amount(slot, "1")


def test_lacks_have_a_text() -> None:
    assert format_amount("mem", -(3 << 30)) == "-3g"
    assert format_amount("cpu", -1500) == "-1.5"
    assert format_amount("cpu", 0) == "0"
    assert format_amount("mem", 0) == "0"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8", "8 is 8 bytes, and the least is 1m; did you mean 8g?"),
        ("512", "512 is 512 bytes, and the least is 1m; did you mean 512m?"),
        ("8k", "8k is 8192 bytes, and the least is 1m"),
        ("1048575", "1048575 is 1048575 bytes, and the least is 1m"),
    ],
)
def test_a_forgotten_suffix_is_a_mistake(text: str, words: str) -> None:
    with pytest.raises(AmountError) as refused:
        parse_asked("mem", text)
    assert str(refused.value) == words


def test_what_may_be_asked_for() -> None:
    assert parse_asked("mem", "1m") == 1 << 20
    assert parse_asked("disk", "4m") == 4 << 20
    with pytest.raises(AmountError, match="20 is 20 bytes, and the least is 4m; did you mean 20g"):
        parse_asked("disk", "20")
    assert parse_asked("mem", "0", zero=True) == 0
    assert parse_asked("cpu", "0.001") == 1
