"""Which vectors, cases of vectors and expectations are left out on purpose, and why: exceptions.json, read."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.vectors.sorter import orders

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE = Path(__file__).parent
EXCEPTIONS: dict[str, Any] = json.loads((HERE / "exceptions.json").read_text())
Vector = dict[str, Any]


def kind_of(vector: Vector) -> str:
    """What a vector is about; empty when it does not say. Those of the autoscaler do not, but are runs of ticks."""
    return str(vector.get("kind") or vector.get("category") or ("scaling" if "runs" in vector else ""))


def exception_of(vector: Vector) -> str | None:
    """Why a vector is no case here: by its kind, by its id, or by what its input says; None when it is one."""
    kind, given = kind_of(vector), vector.get("input", vector)
    named = EXCEPTIONS["kinds"].get(kind) or EXCEPTIONS["ids"].get(vector.get("id"))
    return named or next((rule["reason"] for rule in EXCEPTIONS["conditions"] if _applies(rule, kind, given)), None)


def case_exception(kind: str, case: Any) -> str | None:
    """Why one of the cases of a vector is none here; None when it is one."""
    return next((rule["reason"] for rule in EXCEPTIONS["cases"] if _applies(rule, kind, case)), None)


def _applies(rule: Mapping[str, Any], kind: str, given: Any) -> bool:
    """`where` holds values of the input, `anywhere` texts that one of the values of a key has in it, however deep it
    is, `zero` a key that is 0 somewhere. `tied` names two parts of the input with equal dominant shares; `over_unasked`
    is a slot over its quota before any owner asks for more, and of which no more is asked for;
    `counted` is an order that the number of allocations decides.
    """
    if rule["kind"] != kind:
        return False
    where, anywhere = rule.get("where", {}), rule.get("anywhere", {})
    if "zero" in rule and not any(value == 0 for value in _values(given, rule["zero"])):
        return False
    if rule.get("over_unasked") and not _over_unasked(given):
        return False
    if rule.get("counted") and not any(clients.is_order_by_count() for clients, _ in orders(given["steps"])):
        return False
    if "tied" in rule and len({_share(given[side], given["total"]) for side in rule["tied"]}) != 1:
        return False
    return all(isinstance(given, dict) and given.get(key) == value for key, value in where.items()) and all(
        any(text in str(value) for value in _values(given, key)) for key, text in anywhere.items()
    )


def _over_unasked(given: Mapping[str, Any]) -> bool:
    return any(
        name.endswith("_quota")
        and Fraction(str(given.get(f"{name.removesuffix('_quota')}_holdings", given.get("holdings", {})).get(slot, 0)))
        > Fraction(str(amount))
        and not Fraction(str(given["request"].get(slot, 0)))
        for name, limit in given.items()
        if isinstance(limit, dict) and "request" in given
        for slot, amount in limit.items()
    )


def _share(held: Mapping[str, Any], total: Mapping[str, Any]) -> Fraction:
    parts = [Fraction(str(held.get(slot, 0))) / Fraction(str(of)) for slot, of in total.items() if Fraction(str(of))]
    return max(parts, default=Fraction(0)) / Fraction(str(held.get("weight", 1)))


def _values(given: Any, key: str) -> Iterator[Any]:
    for value in given.values() if isinstance(given, dict) else given if isinstance(given, list) else ():
        yield from _values(value, key)
    if isinstance(given, dict) and key in given:
        yield given[key]
