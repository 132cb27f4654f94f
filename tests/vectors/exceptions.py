"""Which vectors, cases of vectors and expectations are left out on purpose, and why: exceptions.json, read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EXCEPTIONS: dict[str, Any] = json.loads((HERE / "exceptions.json").read_text())
Vector = dict[str, Any]


def kind_of(vector: Vector) -> str:
    """What a vector is about; empty when it does not say."""
    return str(vector.get("kind") or vector.get("category") or "")


def exception_of(vector: Vector) -> str | None:
    """Why a vector is no case here: by its kind, by its id, or by what its input says; None when it is one."""
    kind, given = kind_of(vector), vector.get("input", vector)
    named = EXCEPTIONS["kinds"].get(kind) or EXCEPTIONS["ids"].get(vector.get("id"))
    return named or next((rule["reason"] for rule in EXCEPTIONS["conditions"] if _applies(rule, kind, given)), None)


def case_exception(kind: str, case: Any) -> str | None:
    """Why one of the cases of a vector is none here; None when it is one."""
    return next((rule["reason"] for rule in EXCEPTIONS["cases"] if _applies(rule, kind, case)), None)


def _applies(rule: Mapping[str, Any], kind: str, given: Any) -> bool:
    """`where` holds values of the input, `anywhere` texts that one of the values of a key has in it, however deep it is."""
    if rule["kind"] != kind:
        return False
    where, anywhere = rule.get("where", {}), rule.get("anywhere", {})
    return all(isinstance(given, dict) and given.get(key) == value for key, value in where.items()) and all(
        any(text in str(value) for value in _values(given, key)) for key, text in anywhere.items()
    )


def _values(given: Any, key: str) -> Iterator[Any]:
    for value in given.values() if isinstance(given, dict) else given if isinstance(given, list) else ():
        yield from _values(value, key)
    if isinstance(given, dict) and key in given:
        yield given[key]


class Expectations(dict[str, Any]):
    """What a vector expects, and which of it was read."""

    def __init__(self, expected: Mapping[str, Any]) -> None:
        super().__init__(expected)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    @property
    def unread(self) -> set[str]:
        """What nothing has looked at, but for what is left out on purpose and for notes."""
        return {key for key in self if key not in self.read | set(EXCEPTIONS["expected"])}
