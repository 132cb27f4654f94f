"""Reads what bubblewrap writes to its `--json-status-fd`: one JSON document after another."""

from __future__ import annotations

import json
from dataclasses import dataclass

_MAX_EXIT_CODE = 255
# The highest that Linux gives a process on any machine.
_MAX_PID = 1 << 22


@dataclass(frozen=True, slots=True)
class Status:
    """`init` is the host's number of the first process in the sandbox; `exit_code` that of the command once over."""

    init: int | None = None
    exit_code: int | None = None


def parse_status(text: str) -> Status:
    """Reads what is whole; a document cut short by a crash, or one that is none, ends it. Never raises.

    A value that no process can have is left out: the file may be damaged.
    """
    decoder = json.JSONDecoder()
    values: dict[str, object] = {}
    position = 0
    while (start := text.find("{", position)) >= 0:
        try:
            document, position = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            break
        values |= document
    return Status(_number(values.get("child-pid"), 1, _MAX_PID), known_exit_code(values.get("exit-code")))


def known_exit_code(value: object) -> int | None:
    """Returns the exit code of a process; None for anything else."""
    return _number(value, 0, _MAX_EXIT_CODE)


def _number(value: object, least: int, most: int) -> int | None:
    return value if type(value) is int and least <= value <= most else None
