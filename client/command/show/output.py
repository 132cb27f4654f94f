"""Prints the results of commands on standard output: tables for people, proto JSON and YAML for programs,
names for scripts.
"""

from __future__ import annotations

import functools
import json
import operator
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import click
from google.protobuf.message import Message
from rich.cells import cell_len, set_cell_size

from retinue.client.command.shell.streams import takes_all
from retinue.client.command.show.columns import PREFIX, parse_columns
from retinue.rpc.fields import fields_of, is_map, leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from google.protobuf.descriptor import Descriptor

    _TextType = click.ParamType[str]
else:
    # Early versions of click 8 have no type parameter.
    _TextType = click.ParamType

FORMATS = ("table", "wide", "json", "yaml", "name")
LIST_FORMATS = (*FORMATS, "jsonl")
# Spaces between columns, and the least width that cells are cut to.
_GAP, _NARROWEST = 3, 10
_Item = TypeVar("_Item")
_Command = TypeVar("_Command", bound="Callable[..., object]")
_COLOURS = {
    "RUNNING": "green",
    "ALIVE": "green",
    "SUCCESS": "green",
    "PENDING": "yellow",
    "SUSPECT": "yellow",
    "FAILED": "red",
    "LOST": "red",
}


def output_option(command: _Command) -> _Command:
    """Returns the option `-o`."""
    option = click.option(
        "-o",
        "--output",
        "output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="Output format; json and yaml are messages of the API.",
    )
    return option(command)


class _ListFormat(_TextType):
    """A format of lists: those of one thing, one message a line, or columns of the caller's choice."""

    name = "format"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Returns the formats."""
        del param, ctx
        return f"[{'|'.join(LIST_FORMATS)}|{PREFIX}NAME:PATH,…]"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the format as it is; usage errors for one that does not exist."""
        if value not in LIST_FORMATS and not value.startswith(PREFIX):
            self.fail(f"{value!r} is not one of {', '.join(LIST_FORMATS)}, {PREFIX}NAME:PATH", param, ctx)
        return value


def list_output_option(command: _Command) -> _Command:
    """Returns the option `-o` of lists."""
    option = click.option(
        "-o",
        "--output",
        "output",
        type=_ListFormat(),
        default="table",
        show_default=True,
        help="Output format; json, yaml and jsonl are messages of the API, jsonl one a line.",
    )
    return option(command)


@dataclass(frozen=True, slots=True)
class Column(Generic[_Item]):
    """One column of a table: a title, what stands in it (already safe), and whether it is for `wide` only.

    Where a terminal is too narrow, columns with `drop` are left out, the highest first.
    """

    title: str
    value: Callable[[_Item], str]
    wide: bool = False
    drop: int = 0


def print_list(
    output: str,
    message: Message,
    items: Sequence[_Item],
    columns: Sequence[Column[_Item]],
    name: Callable[[_Item], str],
) -> None:
    """Prints a list; `message` is the list as the API gives it."""
    if output in ("json", "yaml"):
        print_message(output, message)
    elif output == "name":
        for item in items:
            click.echo(name(item))
    elif output == "jsonl":
        for item in items:
            assert isinstance(item, Message)  # noqa: S101  # lists are of messages
            click.echo(json.dumps(plain(item), ensure_ascii=False))
    elif output.startswith(PREFIX):
        _print_columns(output.removeprefix(PREFIX), message, items)
    else:
        for line in rows_of(items, columns, wide=output == "wide"):
            click.echo(line)


def _print_columns(text: str, message: Message, items: Sequence[_Item]) -> None:
    """Prints columns that the caller chose; without items the type comes from the list that the message is."""
    kinds = [field.message_type for field in message.DESCRIPTOR.fields if field.is_repeated]
    chosen = parse_columns(text, cast("Descriptor", next(kind for kind in kinds if kind is not None)))
    rows = [[path.text(item) for _, path in chosen] for item in items if isinstance(item, Message)]
    for line in table([title for title, _ in chosen], rows, colour=sys.stdout.isatty()):
        click.echo(line)


def rows_of(items: Sequence[_Item], columns: Sequence[Column[_Item]], *, wide: bool) -> list[str]:
    """Returns the lines of a table of items; on a terminal they fit its width, unless `wide`."""
    shown = [column for column in columns if wide or not column.wide]
    rows = [[column.value(item) for column in shown] for item in items]
    titles = [column.title for column in shown]
    if sys.stdout.isatty() and not wide:
        titles, rows = fitted(titles, rows, [column.drop for column in shown], shutil.get_terminal_size().columns)
    return table(titles, rows, colour=sys.stdout.isatty())


def fitted(
    titles: Sequence[str], rows: Sequence[Sequence[str]], drops: Sequence[int], width: int
) -> tuple[list[str], list[list[str]]]:
    """Returns a table that fits a width as far as it can: first go columns that say nothing, then those with the
    highest of `drops`, and then the widest cells are cut, but for those of the first column. Pure.
    """
    columns = [list(column) for column in zip(titles, *rows, strict=True)]
    ranks = list(drops)

    def excess() -> int:
        return sum(max(map(cell_len, column)) for column in columns) + _GAP * (len(columns) - 1) - width

    empty = [n for n, column in enumerate(columns) if n and rows and set(column[1:]) == {"-"}]
    by_rank = sorted((n for n, rank in enumerate(ranks) if rank and n not in empty), key=lambda n: -ranks[n])
    gone: set[int] = set()
    everything = columns
    for number in (*reversed(empty), *by_rank):
        if excess() <= 0:
            break
        gone.add(number)
        columns = [column for n, column in enumerate(everything) if n not in gone]
    while (much := excess()) > 0:
        widest = max(columns[1:], key=lambda column: max(map(cell_len, column)), default=None)
        length = 0 if widest is None else max(map(cell_len, widest))
        if widest is None or length <= _NARROWEST:
            break
        room = max(_NARROWEST, length - much)
        widest[:] = [
            text if cell_len(text) <= room else set_cell_size(text, room - 1).rstrip() + "…" for text in widest
        ]
    return [column[0] for column in columns], [
        list(row) for row in zip(*(column[1:] for column in columns), strict=True)
    ]


def print_one(output: str, message: Message, facts: Sequence[tuple[str, str]], name: str) -> None:
    """Prints one thing; `facts` are titles and values, already safe, empty values left out."""
    if output in ("json", "yaml"):
        print_message(output, message)
    elif output == "name":
        click.echo(name)
    else:
        print_facts(facts)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Prints titles and values in two columns, empty values left out."""
    width = max((len(title) for title, value in facts if value), default=0) + 2
    for title, value in facts:
        if value:
            click.echo(f"{title + ':':<{width}}{value}")


def print_message(output: str, message: Message) -> None:
    """Prints a message as proto JSON, or as the same in YAML."""
    print_plain(output, plain(message))


def print_plain(output: str, content: Mapping[str, Any]) -> None:
    """Prints values as JSON, or as YAML."""
    if output == "yaml":
        import yaml  # noqa: PLC0415  # other formats need none of it

        click.echo(yaml.safe_dump(content, sort_keys=False, allow_unicode=takes_all()), nl=False)
    else:
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))


def plain(message: Message) -> dict[str, Any]:
    """Returns a message as proto JSON, its fields in their order and the keys of maps sorted:
    maps come in a new order each time.
    """
    from google.protobuf import json_format  # noqa: PLC0415  # as above

    content: dict[str, Any] = json_format.MessageToDict(message)
    _sort_maps(message, content)
    return content


def _sort_maps(message: Message, content: dict[str, Any]) -> None:
    """Maps are of plain values throughout the API."""
    for fields, value in leaves(message):
        *above, last = (field.json_name for field in fields)
        holder = functools.reduce(operator.getitem, above, content)
        if is_map(fields[-1]):
            holder[last] = dict(sorted(holder[last].items()))
        elif fields[-1].is_repeated and fields_of(fields[-1]) is not None:
            for item, part in zip(value, holder[last], strict=True):
                _sort_maps(item, part)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, colour: bool) -> list[str]:
    """Returns the lines of a table without borders; whatever is wider than the screen stays whole."""
    widths = [max(cell_len(text) for text in column) for column in zip(titles, *rows, strict=True)]
    lines = []
    for number, row in enumerate((titles, *rows)):
        cells = []
        for position, (text, width) in enumerate(zip(row, widths, strict=True)):
            padding = "" if position == len(row) - 1 else " " * (width - cell_len(text) + _GAP)
            cells.append(_styled(text, title=number == 0, colour=colour) + padding)
        lines.append("".join(cells).rstrip())
    return lines


def _styled(text: str, *, title: bool, colour: bool) -> str:
    if not colour:
        return text
    return click.style(text, bold=True) if title else click.style(text, fg=_COLOURS.get(text))
