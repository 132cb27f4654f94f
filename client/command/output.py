"""Prints the results of commands on standard output: tables for people, proto JSON and YAML for programs, names for scripts."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click
import yaml
from google.protobuf import json_format
from rich.cells import cell_len

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.protobuf.message import Message

FORMATS = ("table", "wide", "json", "yaml", "name")
_Item = TypeVar("_Item")
_Command = TypeVar("_Command", bound="Callable[..., object]")
_COLOURS = {
    "RUNNING": "green",
    "ALIVE": "green",
    "SUCCESS": "green",
    "PENDING": "yellow",
    "SUSPECT": "yellow",
    "FAILURE": "red",
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
        help="How to print; json and yaml are the messages of the API.",
    )
    return option(command)


@dataclass(frozen=True, slots=True)
class Column(Generic[_Item]):
    """One column of a table: a title, what stands in it (already safe), and whether it is for `wide` only."""

    title: str
    value: Callable[[_Item], str]
    wide: bool = False


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
    else:
        shown = [column for column in columns if output == "wide" or not column.wide]
        rows = [[column.value(item) for column in shown] for item in items]
        for line in table([column.title for column in shown], rows, colour=sys.stdout.isatty()):
            click.echo(line)


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
    content = plain(message)
    if output == "yaml":
        click.echo(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))


def plain(message: Message) -> dict[str, Any]:
    """Returns a message as proto JSON, its fields in their order and the keys of maps sorted: maps come in a new order each time."""
    content: dict[str, Any] = json_format.MessageToDict(message)
    _sort_maps(message, content)
    return content


def _sort_maps(message: Message, content: dict[str, Any]) -> None:
    """Maps are of plain values throughout the API."""
    for field, value in message.ListFields():
        shown = content[field.json_name]
        if field.message_type is None or field.message_type.file.package == "google.protobuf":
            continue
        if field.message_type.GetOptions().map_entry:
            content[field.json_name] = dict(sorted(shown.items()))
        elif field.is_repeated:
            for item, part in zip(value, shown, strict=True):
                _sort_maps(item, part)
        else:
            _sort_maps(value, shown)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, colour: bool) -> list[str]:
    """Returns the lines of a table without borders; whatever is wider than the screen stays whole."""
    widths = [max(cell_len(text) for text in column) for column in zip(titles, *rows, strict=True)]
    lines = []
    for number, row in enumerate((titles, *rows)):
        cells = []
        for position, (text, width) in enumerate(zip(row, widths, strict=True)):
            padding = "" if position == len(row) - 1 else " " * (width - cell_len(text) + 3)
            cells.append(_styled(text, title=number == 0, colour=colour) + padding)
        lines.append("".join(cells).rstrip())
    return lines


def _styled(text: str, *, title: bool, colour: bool) -> str:
    if not colour:
        return text
    return click.style(text, bold=True) if title else click.style(text, fg=_COLOURS.get(text))
