"""Checks named options against the TypedDict that declares them, for callers whose type checker does not."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from retinue.client.errors import UsageError

Amount = str | int | float | Decimal
"""An amount of a slot: a number, or text with a unit such as `4g`."""


def check_options(options: Mapping[str, object], declared: type) -> None:
    """Raises UsageError for an option that is not declared, with those that are nearly called so,
    and for a value of another type.
    """
    hints = _hints(declared)
    for name, value in options.items():
        if name not in hints:
            raise UsageError(_unknown(name, hints))
        _check(name, value, hints[name])


def amount_texts(amounts: Mapping[str, Amount]) -> dict[str, str]:
    """Returns amounts as the contract has them: decimal text, without an exponent."""
    return {
        slot: amount if isinstance(amount, str) else format(Decimal(str(amount)), "f")
        for slot, amount in amounts.items()
    }


def _unknown(name: str, hints: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, hints, n=3)
    if near:
        return f"unknown option {name!r}: did you mean {' or '.join(near)}?"
    return f"unknown option {name!r}; there are {', '.join(sorted(hints))}"


@functools.cache
def _hints(declared: type) -> dict[str, Any]:
    return get_type_hints(declared)


def _check(place: str, value: object, hint: Any) -> None:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType} and (tuples := [choice for choice in arguments if get_origin(choice) is tuple]):
        _check(place, value, _of_length(place, value, tuples))
    elif origin in {Union, UnionType}:
        if not any(_fits(value, choice) for choice in arguments):
            raise UsageError(f"{place}: expected {' or '.join(map(_name, arguments))}, not {value!r}")
    elif origin is Mapping and isinstance(value, Mapping):
        for key, item in value.items():
            _check(f"a key of {place}", key, arguments[0])
            _check(f"{place}[{key!r}]", item, arguments[1])
    elif origin is Sequence and isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for index, item in enumerate(value):
            _check(f"{place}[{index}]", item, arguments[0])
    elif origin is tuple and isinstance(value, Sequence) and len(value) == len(arguments):
        for index, item in enumerate(value):
            _check(f"{place}[{index}]", item, arguments[index])
    elif origin is tuple:
        raise UsageError(f"{place}: expected {len(arguments)} values, not {value!r}")
    elif not _fits(value, hint):
        raise UsageError(f"{place}: expected {_name(hint)}, not {value!r}")


def _of_length(place: str, value: object, tuples: Sequence[Any]) -> Any:
    """Returns the kind of tuple that has as many values. Raises UsageError."""
    by_length = {len(get_args(kind)): kind for kind in tuples}
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) not in by_length:
        raise UsageError(f"{place}: expected {' or '.join(map(str, by_length))} values, not {value!r}")
    return by_length[len(value)]


def _fits(value: object, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        # Words are taken in any case; who converts them says which there are.
        return isinstance(value, str)
    if hint in {int, float, Decimal}:
        number = int | float if hint is float else hint
        return isinstance(value, number) and not isinstance(value, bool)
    return get_origin(hint) is None and isinstance(value, hint)


def _name(hint: Any) -> str:
    names = {Sequence: "a list", Mapping: "a mapping", type(None): "None"}
    kind = str if get_origin(hint) is Literal else get_origin(hint) or hint
    return names.get(kind) or str(kind.__name__)
