"""Options of a daemon as fields of a dataclass: a command gets one value of it, and its function no parameter for each.

```
@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    data_dir: Path = setting(default=Path("/var/lib/x"), help="Directory of its state.")

@main.command()
@bound(_Options)
def run(given: _Options) -> None: ...
```
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

_Command = TypeVar("_Command", bound="Callable[..., Any]")
_DECORATOR = "option"


def setting(*flags: str, **attributes: Any) -> Any:
    """Declares a field that an option sets: `--` and the name of the field, unless there are `flags`. `attributes` are
    those of `click.option`; a default that says something is shown.
    """

    def decorate(command: _Command, name: str) -> _Command:
        shown: dict[str, Any] = {"show_default": True} if attributes.get("default") else {}
        return click.option(*(flags or (f"--{name.replace('_', '-')}",)), name, **shown, **attributes)(command)

    return dataclasses.field(metadata={_DECORATOR: decorate})


def declared(option: Callable[[_Command], _Command]) -> Any:
    """Declares a field that an option of several commands sets, which has the name of the field."""
    return dataclasses.field(metadata={_DECORATOR: lambda command, _name: option(command)})


def bound(settings: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command an option for each field of a dataclass, in their order. Its function gets one value of the class
    as `given`, beside what other options set.
    """
    fields = dataclasses.fields(settings)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def call(*arguments: Any, **values: Any) -> None:
            function(*arguments, given=settings(**{field.name: values.pop(field.name) for field in fields}), **values)

        command: Callable[..., None] = call
        for field in reversed(fields):
            command = field.metadata[_DECORATOR](command, field.name)
        return command

    return decorate
