"""What bubblewrap writes to its `--json-status-fd`: one JSON document after another."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Status:
    """`init` is the host's number of the first process in the sandbox; `exit_code` that of the command once over."""

    init: int | None = None
    exit_code: int | None = None


def parse_status(text: str) -> Status:
    """Reads what is whole; a document cut short by a crash, or one that is none, ends it."""
    decoder = json.JSONDecoder()
    values: dict[str, int] = {}
    position = 0
    while (start := text.find("{", position)) >= 0:
        try:
            document, position = decoder.raw_decode(text, start)
        except ValueError:
            break
        values |= {key: value for key, value in document.items() if isinstance(value, int)}
    return Status(values.get("child-pid"), values.get("exit-code"))
