"""What is sealed opens with the same key, for the same binding, and unchanged."""

from __future__ import annotations

import base64
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.manager.identity.sealing import Sealer

SEALER, OTHER = Sealer(b"k" * 32), Sealer(b"l" * 32)


@given(st.data(), st.binary(max_size=40), st.binary(max_size=40))
def test_every_change_is_noticed(data: st.DataObject, binding: bytes, content: bytes) -> None:
    sealed = SEALER.seal(content, binding)
    assert SEALER.open(sealed, binding) == content
    position = data.draw(st.integers(0, len(sealed) - 1))
    letter = data.draw(st.sampled_from("ABCXYZabcxyz0189-_+/= !")).encode()
    for changed in (
        sealed[:position] + letter + sealed[position + 1 :],
        sealed[:position] + letter + sealed[position:],
    ):
        if changed != sealed:
            with pytest.raises(ValueError, match="another key"):
                SEALER.open(changed, binding)
    for sealer, other in ((OTHER, binding), (SEALER, binding + b"x")):
        with pytest.raises(ValueError, match="another key"):
            sealer.open(sealed, other)


@pytest.mark.parametrize("content", [b"", b"x" * 16, b"x" * 32])
def test_spare_bits_of_the_last_letter_are_noticed(content: bytes) -> None:
    sealed = SEALER.seal(content)
    text, padding = sealed.rstrip(b"="), sealed[len(sealed.rstrip(b"=")) :]
    others = [text[:-1] + letter.encode() + padding for letter in string.ascii_letters + string.digits + "-_"]
    alike = [
        one for one in others if one != sealed and base64.urlsafe_b64decode(one) == base64.urlsafe_b64decode(sealed)
    ]
    assert len(alike) == {0: 0, 1: 3, 2: 15}[len(padding)]
    for one in alike:
        with pytest.raises(ValueError, match="another key"):
            SEALER.open(one)


def test_what_is_sealed_cannot_be_read_and_never_looks_the_same() -> None:
    sealed = SEALER.seal(b"a secret of 24 characters")
    assert b"secret" not in base64.urlsafe_b64decode(sealed)
    assert SEALER.seal(b"a secret of 24 characters") != sealed


@pytest.mark.parametrize("sealed", [b"", b"x", b"=" * 8, b"AAAA", b"\0", "ä".encode(), b"gAAAAA==", bytes(100)])
def test_nonsense_is_refused(sealed: bytes) -> None:
    with pytest.raises(ValueError, match="another key"):
        SEALER.open(sealed)
