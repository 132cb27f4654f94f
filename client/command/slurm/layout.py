"""Columns that users of Slurm's commands choose, as `%.18i %j`, `jobid:20` or `JobID%20`, and their widths. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_Item = TypeVar("_Item")
_LETTER = re.compile(r"%(?P<modifiers>[.#]*)(?P<size>\d*)(?P<letter>[A-Za-z])")
_LONG = re.compile(r"(?P<name>[A-Za-z_]+)(?::(?P<right>\.?)(?P<size>\d*)(?P<suffix>.*))?")
_SACCT = re.compile(r"(?P<name>[A-Za-z]+)(?:%(?P<size>-?\d+))?")
_LONG_SIZE = 20


@dataclass(frozen=True, slots=True)
class Field(Generic[_Item]):
    """What a column shows: its title, its value, and the width that it has by default."""

    title: str
    value: Callable[[_Item], str]
    width: int = 0


@dataclass(frozen=True, slots=True)
class Column(Generic[_Item]):
    """A field as it is to be set: its least and greatest width (0: as it comes), its side, and the text after it."""

    field: Field[_Item]
    width: int = 0
    right: bool = False
    after: str = ""
    # What replaces the last character of what is cut.
    cut: str = ""

    def set(self, text: str) -> str:
        """Returns a value in its width."""
        if self.width and len(text) > self.width:
            text = text[: self.width - len(self.cut)] + self.cut
        return (text.rjust(self.width) if self.right else text.ljust(self.width)) + self.after


@dataclass(frozen=True, slots=True)
class Layout(Generic[_Item]):
    """Columns, and the text before the first."""

    columns: Sequence[Column[_Item]]
    before: str = ""

    def header(self) -> str:
        """Returns the titles."""
        return self.before + "".join(column.set(column.field.title) for column in self.columns)

    def line(self, item: _Item) -> str:
        """Returns the values of one thing."""
        return self.before + "".join(column.set(column.field.value(item)) for column in self.columns)


def by_letters(text: str, letters: Mapping[str, Field[_Item]], option: str) -> Layout[_Item]:
    """Returns the layout of `-o "%.18i %j"`: `%[.][size]LETTER`, and all else as it stands; of `%all` all fields with
    bars. Raises UsageError, which names the option.
    """
    if text.strip() == "%all":
        every = list(dict.fromkeys(letters.values()))
        return Layout([Column(field, after="|" if field is not every[-1] else "") for field in every])
    found = list(_LETTER.finditer(text))
    columns = list[Column[_Item]]()
    for position, match in enumerate(found):
        field = letters.get(match["letter"])
        if field is None:
            raise UsageError(f"{option}={text}: %{match['letter']} is none of %{' %'.join(letters)}")
        end = found[position + 1].start() if position + 1 < len(found) else len(text)
        columns.append(Column(field, int(match["size"] or 0), "." in match["modifiers"], text[match.end() : end]))
    return Layout(columns, text[: found[0].start()] if found else text)


def by_names(text: str, names: Mapping[str, Field[_Item]], option: str) -> Layout[_Item]:
    """Returns the layout of `-O jobid:10,name:.20`: `NAME[:[.][size][suffix]]`, 20 wide by default.
    Raises UsageError, which names the option.
    """
    columns = list[Column[_Item]]()
    for part in filter(None, text.split(",")):
        found = _LONG.fullmatch(part.strip())
        field = names.get(found["name"].lower().replace("_", "")) if found is not None else None
        if found is None or field is None:
            raise UsageError(f"{option}={text}: {part} is none of {', '.join(names)}")
        size = int(found["size"]) if found["size"] else _LONG_SIZE
        columns.append(Column(field, size, bool(found["right"]), found["suffix"] or ""))
    return Layout(columns)


def by_sacct(text: str, names: Mapping[str, Field[_Item]], *, delimiter: str | None, trailing: bool) -> Layout[_Item]:
    """Returns the layout of `--format JobID,State%20`: `NAME[%[-]size]`, by default to the right; with a delimiter
    nothing is filled or cut. Raises UsageError.
    """
    columns = list[Column[_Item]]()
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for position, part in enumerate(parts):
        found = _SACCT.fullmatch(part)
        field = names.get(found["name"].lower()) if found is not None else None
        if found is None or field is None:
            raise UsageError(f"Invalid field requested: {part!r}; sacct -e lists all")
        if delimiter is not None:
            columns.append(Column(field, after=delimiter if trailing or position + 1 < len(parts) else ""))
            continue
        size = int(found["size"]) if found["size"] else field.width
        columns.append(Column(field, abs(size), right=size > 0, after=" ", cut="+"))
    return Layout(columns)
