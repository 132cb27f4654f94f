"""Page tokens are good for their caller and query, and for nothing else."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from retinue.manager.api.sessions.watch import split
from retinue.manager.domain.errors import InvalidPage, InvalidRequest
from retinue.manager.identity.principal import Kind, Principal
from retinue.manager.server import interceptors
from retinue.manager.server.pages import MAX_PAGE_BYTES, fitting, open_page
from retinue.manager.v1 import session_pb2 as pb
from retinue.manager.v1 import session_service_pb2 as service_pb
from retinue.manager.v1.journal_position_pb2 import JournalPosition

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def calling(name: str) -> Iterator[None]:
    token = interceptors._principal.set(Principal(Kind.USER, name))  # noqa: SLF001  # set by the server in real calls
    try:
        yield
    finally:
        interceptors._principal.reset(token)  # noqa: SLF001


@pytest.mark.attack("odd-pages")
@pytest.mark.parametrize(("asked", "size"), [(0, 50), (1, 1), (500, 500), (501, 500), (2**31 - 1, 500)])
def test_sizes(asked: int, size: int) -> None:
    with calling("ada"):
        assert open_page(asked, "", ["x"]).size == size


@pytest.mark.attack("odd-pages")
def test_negative_size() -> None:
    with calling("ada"), pytest.raises(InvalidRequest) as caught:
        open_page(-1, "", ["x"])
    assert caught.value.violations[0][0] == "page_size"


def test_token_leads_on() -> None:
    with calling("ada"):
        token = open_page(10, "", ["x", 'state = "A"']).token_after(["2026-01-01", "k"])
        assert open_page(20, token, ["x", 'state = "A"']).after == ("2026-01-01", "k")


@pytest.mark.attack("page-tokens-of-others")
def test_token_of_another_caller_or_query() -> None:
    with calling("ada"):
        token = open_page(10, "", ["x", "a"]).token_after(["k"])
        with pytest.raises(InvalidPage):
            open_page(10, token, ["x", "b"])
    with calling("bob"), pytest.raises(InvalidPage):
        open_page(10, token, ["x", "a"])


@pytest.mark.attack("page-tokens-of-others")
@pytest.mark.parametrize("token", ["x", "é", "=" * 8, "A" * 5000, "AAAA", "../../etc/passwd", "\0"])
def test_nonsense(token: str) -> None:
    with calling("ada"), pytest.raises(InvalidPage):
        open_page(10, token, ["x"])


@pytest.mark.attack("page-tokens-of-others")
def test_a_changed_token_is_refused() -> None:
    with calling("ada"):
        token = open_page(10, "", ["x"]).token_after(["k"])
        with pytest.raises(InvalidPage):
            open_page(10, token.swapcase(), ["x"])


@pytest.mark.parametrize(
    ("sizes", "number"),
    [
        ([], 0),
        ([10, 10], 2),
        ([2 * MAX_PAGE_BYTES, 1], 1),
        ([1, MAX_PAGE_BYTES], 1),
        ([MAX_PAGE_BYTES // 2] * 5, 1),
        ([MAX_PAGE_BYTES // 4] * 9, 3),
    ],
)
def test_a_page_holds_what_its_bytes_allow_and_at_least_one(sizes: list[int], number: int) -> None:
    assert fitting(sizes) == number


@pytest.mark.parametrize(
    ("size", "found", "bytes_each", "listed", "leads_on"),
    [(5, 5, 10, 5, False), (5, 6, 10, 5, True), (5, 5, 400_000, 2, True), (1, 2, 4_000_000, 1, True)],
)
def test_a_page_that_is_cut_leads_to_the_rest(
    size: int, found: int, bytes_each: int, listed: int, leads_on: bool
) -> None:
    items = [pb.Session(message="x" * bytes_each) for _ in range(min(size, found))]
    with calling("ada"):
        page = open_page(size, "", ["x"])
        shown, token = page.close(items, found, lambda place: [str(place)])
        assert (len(shown), bool(token)) == (listed, leads_on)
        if token:
            assert open_page(size, token, ["x"]).after == (str(listed - 1),)


END = JournalPosition(revision=20, incarnation="i")


def test_large_portions_of_events_are_several_responses() -> None:
    events = [pb.SessionEvent(revision=number, created=large(300_000)) for number in range(11, 18)]
    responses = list(split(END, events))
    assert [event.revision for response in responses for event in response.events] == list(range(11, 18))
    assert all(response.ByteSize() <= 1.1 * MAX_PAGE_BYTES for response in responses)
    assert [response.position.revision for response in responses] == [13, 16, 20]
    assert list(split(END, [])) == [service_pb.WatchSessionsResponse(position=END)]


def large(size: int) -> pb.Session:
    return pb.Session(message="x" * size)
