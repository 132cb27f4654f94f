"""JSON documents that carry their checksum: damage anywhere in one is noticed, not taken for its content."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKSUM = "checksum"


def dump(values: Mapping[str, Any]) -> bytes:
    """Returns the document with its checksum."""
    return json.dumps(dict(values) | {CHECKSUM: _checksum(values)}, indent=1).encode()


def load(content: bytes) -> dict[str, Any]:
    """Reads what `dump` returned, without the checksum. Raises ValueError on anything else."""
    try:
        values: Any = json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    if values.pop(CHECKSUM, None) != _checksum(values):
        raise ValueError("the checksum does not match")
    return values


def _checksum(values: Mapping[str, Any]) -> str:
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
