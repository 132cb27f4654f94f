"""Lists as one stream of items, whatever the size of the pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

PAGE_SIZE = 200


class Page(Protocol):
    """A response with a page of a list."""

    next_page_token: str


_Page = TypeVar("_Page", bound=Page)
_Item = TypeVar("_Item")


async def paged(
    fetch: Callable[[str, int], Awaitable[_Page]], items: Callable[[_Page], Iterable[_Item]], limit: int | None
) -> AsyncGenerator[_Item, None]:
    """Yields all items, or the first `limit`; `fetch` gets the page token and the size of the page wanted."""
    token, left = "", limit
    while left is None or left > 0:
        page = await fetch(token, PAGE_SIZE if left is None else min(PAGE_SIZE, left))
        for item in items(page):
            yield item
            if left is not None:
                left -= 1
                if left == 0:
                    return
        token = page.next_page_token
        if not token:
            return
