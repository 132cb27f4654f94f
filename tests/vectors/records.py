"""Vectors as they are read: mappings that keep which of their keys something looked at."""

from __future__ import annotations

from collections import ChainMap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, KeysView, Mapping, ValuesView


class Record(dict[str, Any]):
    """A mapping of a vector; mappings in it are records too. Iteration and comparison read every key,
    `names` reads none.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        """Wraps the mappings in `content`, at any depth."""
        super().__init__({key: _recorded(value) for key, value in content.items()})
        self._read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        self._read.add(key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a value, which is then read, or the default."""
        try:
            return self[key]
        except KeyError:
            return default

    def __iter__(self) -> Iterator[str]:
        self._read.update(super().keys())
        return super().__iter__()

    def keys(self) -> KeysView[str]:  # type: ignore[override]  # of the view, the iterator is what counts
        """Reads every key."""
        self._read.update(super().keys())
        return dict(self.named()).keys()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """Reads every key."""
        self._read.update(super().keys())
        return dict(self.named()).values()

    def items(self) -> Any:
        """Reads every key."""
        self._read.update(super().keys())
        return super().items()

    def __eq__(self, other: object) -> bool:
        read_all(self)
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def names(self) -> list[str]:
        """Returns the keys and reads none of them."""
        return [key for key, _ in self.named()]

    def named(self) -> Iterable[tuple[str, Any]]:
        """Returns the items and reads none of them."""
        return super().items()

    def unread(self, ignored: Iterable[str] = (), path: str = "") -> Iterator[str]:
        """Yields the paths of what nothing looked at; keys in `ignored` are left out at any depth."""
        for key, value in self.named():
            if key in ignored:
                continue
            if key not in self._read:
                yield f"{path}{key}"
            else:
                yield from _unread(value, ignored, f"{path}{key}")


def overlaid(base: dict[str, Any], case: dict[str, Any]) -> ChainMap[str, Any]:
    """Returns a case whose other keys are those of `base`; reading it reads the one that it comes from."""
    return ChainMap(case, base)


def names_of(mapping: Mapping[str, Any]) -> list[str]:
    """Returns the keys of a record, or of records over each other, and reads none of them."""
    if isinstance(mapping, ChainMap):
        return list(dict.fromkeys(name for part in mapping.maps for name in names_of(part)))
    return mapping.names() if isinstance(mapping, Record) else list(mapping)


def _recorded(value: Any) -> Any:
    if isinstance(value, dict):
        return Record(value)
    return [_recorded(item) for item in value] if isinstance(value, list) else value


def read_all(value: Any) -> None:
    """Reads every key at any depth: of what is left out on purpose, or compared as a whole."""
    for item in value.values() if isinstance(value, Record) else value if isinstance(value, list) else ():
        read_all(item)


def _unread(value: Any, ignored: Iterable[str], path: str) -> Iterator[str]:
    if isinstance(value, Record):
        yield from value.unread(ignored, f"{path}.")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _unread(item, ignored, f"{path}[{number}]")
