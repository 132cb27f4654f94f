"""Lists of names of hosts as Slurm writes them: `n1,gpu[01-03,7]`. Pure."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_NAMES = 10_000
_HOSTS = re.compile(
    r"(?P<before>[^\[\],]*)(?:\[(?P<ranges>\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*)\](?P<after>[^\[\],]*))?"
)
_NUMBERED = re.compile(r"(.*?)(\d{1,6})")


def expand(text: str, option: str) -> list[str]:
    """Returns the names of a list. Raises UsageError, which names the option."""
    names = list[str]()
    for part in re.findall(r"(?:[^,\[\]\s]|\[[^\[\]]*\])+|[\[\]]", text):
        found = _HOSTS.fullmatch(part)
        if found is None:
            raise UsageError(f"{option}={text}: write names, separated by commas, or ranges of them as n[1-3,5]")
        if found["ranges"] is None:
            names.append(part)
            continue
        for item in found["ranges"].split(","):
            first, _, last = item.partition("-")
            if not 0 <= int(last or first) - int(first) < _MAX_NAMES:
                raise UsageError(f"{option}={text}: {item} is no range")
            numbers = range(int(first), int(last or first) + 1)
            names += [f"{found['before']}{number:0{len(first)}d}{found['after']}" for number in numbers]
    return names


def compress(names: Iterable[str]) -> str:
    """Returns names in one list, numbers that end them as ranges: the inverse of `expand` for distinct names."""
    parts = list[str]()
    by_prefix: dict[tuple[str, int], list[int]] = {}
    for name in sorted(set(names)):
        found = _NUMBERED.fullmatch(name)
        if found is None:
            parts.append(name)
        else:
            # 01 and 1 are others.
            width = len(found[2]) if found[2].startswith("0") else 0
            by_prefix.setdefault((found[1], width), []).append(int(found[2]))
    for (prefix, width), numbers in by_prefix.items():
        if len(numbers) == 1:
            parts.append(f"{prefix}{numbers[0]:0{width}d}")
        else:
            parts.append(f"{prefix}[{ranges(numbers, width)}]")
    return ",".join(sorted(parts))


def ranges(numbers: Iterable[int], width: int = 0) -> str:
    """Returns numbers as `1-3,5`, filled with zeros up to a width."""
    ordered = sorted(set(numbers))
    found = list[str]()
    for _, run in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        first, last = f"{members[0]:0{width}d}", f"{members[-1]:0{width}d}"
        found.append(first if len(members) == 1 else f"{first}-{last}")
    return ",".join(found)
