"""Page tokens are good for their caller and query, and for nothing else."""

from __future__ import annotations

import base64
import contextlib
import string
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.api import interceptors
from manager.api.errors import InvalidPage, InvalidRequest
from manager.api.pages import Sealer, open_page
from manager.identity.principal import Kind, Principal


@contextlib.contextmanager
def calling(name: str) -> Iterator[None]:
    token = interceptors._principal.set(Principal(Kind.USER, name))  # noqa: SLF001  # set by the server in real calls
    try:
        yield
    finally:
        interceptors._principal.reset(token)  # noqa: SLF001


@pytest.mark.parametrize(("asked", "size"), [(0, 50), (1, 1), (500, 500), (501, 500), (2**31 - 1, 500)])
def test_sizes(asked: int, size: int) -> None:
    with calling("ada"):
        assert open_page(asked, "", ["x"]).size == size


def test_negative_size() -> None:
    with calling("ada"), pytest.raises(InvalidRequest) as caught:
        open_page(-1, "", ["x"])
    assert caught.value.violations[0][0] == "page_size"


def test_token_leads_on() -> None:
    with calling("ada"):
        token = open_page(10, "", ["x", 'state = "A"']).token_after(["2026-01-01", "k"])
        assert open_page(20, token, ["x", 'state = "A"']).after == ("2026-01-01", "k")


def test_token_of_another_caller_or_query() -> None:
    with calling("ada"):
        token = open_page(10, "", ["x", "a"]).token_after(["k"])
        with pytest.raises(InvalidPage):
            open_page(10, token, ["x", "b"])
    with calling("bob"), pytest.raises(InvalidPage):
        open_page(10, token, ["x", "a"])


@pytest.mark.parametrize("token", ["x", "é", "=" * 8, "A" * 5000, "AAAA", "../../etc/passwd", "\0"])
def test_nonsense(token: str) -> None:
    with calling("ada"), pytest.raises(InvalidPage):
        open_page(10, token, ["x"])


@given(st.data(), st.binary(max_size=40), st.binary(max_size=40))
def test_every_change_of_a_token_is_noticed(data: st.DataObject, binding: bytes, content: bytes) -> None:
    sealer = Sealer(b"k" * 32)
    token = sealer.seal(binding, content)
    assert sealer.open(binding, token) == content
    position = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from("ABCXYZabcxyz0189-_"))
    changed = token[:position] + letter + token[position + 1 :]
    if changed != token:
        with pytest.raises(InvalidPage):
            sealer.open(binding, changed)
    with pytest.raises(InvalidPage):
        Sealer(b"l" * 32).open(binding, token)


@pytest.mark.parametrize("content", [b"", b"x", b"xy"])
def test_bits_to_spare_in_the_last_letter_are_noticed(content: bytes) -> None:
    sealer = Sealer(b"k" * 32)
    token = sealer.seal(b"", content)
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    others = [token[:-1] + letter for letter in string.ascii_letters + string.digits + "-_" if letter != token[-1]]
    alike = [other for other in others if base64.urlsafe_b64decode(other + "=" * (-len(other) % 4)) == raw]
    assert len(alike) == {0: 0, 2: 15, 3: 3}[len(token) % 4]
    for other in alike:
        with pytest.raises(InvalidPage):
            sealer.open(b"", other)
