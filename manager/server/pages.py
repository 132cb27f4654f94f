"""Pages of lists: where the next one begins is a key in an opaque token.

A token is sealed for its caller and its query. It gives no rights: each call decides again what a page shows. A page is
bounded in items and in bytes: a list of large things has more pages, and each of them costs about the same.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from retinue.manager.domain.errors import InvalidPage, InvalidRequest
from retinue.manager.identity.sealing import Sealer
from retinue.manager.server.call_limits import ROW_COST
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.turn_taking import charge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

DEFAULT_SIZE, MAX_SIZE = 50, 500
# Clients take messages of 4 MiB.
MAX_PAGE_BYTES = 1024 * 1024
# Of a message in a list: its tag and its length.
_FRAME_BYTES = 6
_LONGEST_TOKEN = 2048


_Item = TypeVar("_Item", bound=Message)


@dataclass(slots=True)
class _Sealing:
    # Until a server sets the key of its installation, tokens are good within this process.
    sealer: Sealer


_sealing = _Sealing(Sealer(secrets.token_bytes(32)))


def use_key(key: bytes) -> None:
    """Seals with a key from now on."""
    _sealing.sealer = Sealer(key)


@dataclass(frozen=True, slots=True)
class Page:
    """Describes what one call returns."""

    size: int
    # The key that was given to `token_after` for the page before, as a tuple; None on the first page.
    after: Any
    binding: bytes

    def token_after(self, key: Sequence[str]) -> str:
        """Returns the token of the page that follows the row with this key."""
        return _sealing.sealer.seal(json.dumps(list(key), separators=(",", ":")).encode(), self.binding).decode()

    def close(
        self, items: Sequence[_Item], found: int, key: Callable[[int], Sequence[str]]
    ) -> tuple[Sequence[_Item], str]:
        """Returns those of `items`, at most `size`, that a response holds, and the token of the next page,
        empty on the last one.

        `found` is how many rows there were, more than there are items when others follow;
        `key` returns the key of the item at a position.
        """
        charge(ROW_COST * len(items))
        number = fitting(item.ByteSize() for item in items[: self.size])
        return items[:number], self.token_after(key(number - 1)) if found > number else ""


def fitting(sizes: Iterable[int], most: int = MAX_PAGE_BYTES) -> int:
    """Returns how many messages of these sizes in bytes fit in a response, from the first on;
    at least one, so that every list gets on.
    """
    number = total = 0
    for size in sizes:
        total += size + _FRAME_BYTES
        if number and total > most:
            break
        number += 1
    return number


def open_page(page_size: int, page_token: str, query: Sequence[Any]) -> Page:
    """Returns the page that is asked for; `query` is everything else in the request, with the kind of list first.

    Raises InvalidRequest on a negative size and InvalidPage on a token that is not for this caller and query.
    """
    if page_size < 0:
        raise InvalidRequest([("page_size", "must not be negative")])
    principal = current_principal()
    binding = json.dumps([principal.kind, principal.name, *query], separators=(",", ":")).encode()
    after = None
    if page_token:
        after = tuple(json.loads(_opened(page_token, binding)))
    return Page(min(page_size or DEFAULT_SIZE, MAX_SIZE), after, binding)


def _opened(token: str, binding: bytes) -> bytes:
    if len(token) > _LONGEST_TOKEN:
        raise InvalidPage
    try:
        return _sealing.sealer.open(token.encode(), binding)
    except ValueError:
        raise InvalidPage from None
