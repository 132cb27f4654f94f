"""Tracks the progress of an image pull: folds the engine's events into layers, reported in steps. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from retinue.agent.attempts import Layer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STEP = 0.05
"""The part of the whole that is worth a report."""
SHORTEST, LONGEST = 1.0, 30.0
"""Seconds between two reports: the minimum, and the maximum if there is any progress."""
MAX_LAYERS = 200
MAX_ID = 64
MAX_BYTES = 2**53
"""More than any layer has; sums of so many stay within 64 bits."""
_WHOLE = frozenset({"Pull complete", "Already exists"})
_ARRIVED = _WHOLE | {"Download complete", "Verifying Checksum", "Extracting"}


def fold(layers: Mapping[str, Layer], event: Mapping[str, Any]) -> dict[str, Layer]:
    """Returns the layers after an event of `POST /images/create`, by id; what is not about a layer changes nothing."""
    identifier, status = str(event.get("id") or "")[:MAX_ID], str(event.get("status") or "")
    detail = event.get("progressDetail")
    known = layers.get(identifier)
    after = dict(layers)
    # The first line has the tag for an id, and no details.
    if not identifier or (known is None and (status.startswith("Pulling from") or len(layers) >= MAX_LAYERS)):
        return after
    layer = known or Layer(identifier)
    if status == "Downloading":
        current, total = (_byte_count(detail, name) for name in ("current", "total"))
        layer = replace(layer, bytes=max(layer.bytes, current), total=max(layer.total, total))
    elif status in _ARRIVED:
        layer = replace(layer, bytes=max(layer.bytes, layer.total), done=layer.done or status in _WHOLE)
    after[identifier] = layer
    return after


def _byte_count(detail: object, name: str) -> int:
    """Returns a number of bytes that an engine reports, 0 for anything else; a registry names the sizes of layers."""
    value = detail.get(name) if isinstance(detail, dict) else None
    return min(max(value, 0), MAX_BYTES) if isinstance(value, int) else 0


def totals(layers: Sequence[Layer]) -> tuple[int, int]:
    """Returns the bytes fetched, and bytes in all, of the layers whose size is known."""
    sized = [layer for layer in layers if layer.total > 0]
    return sum(layer.bytes for layer in sized), sum(layer.total for layer in sized)


def worth_reporting(reported: Sequence[Layer], now: Sequence[Layer], seconds: float) -> bool:
    """Returns whether `now` should be reported, so many seconds after `reported` was;
    the journal keeps every report.
    """
    if list(reported) == list(now) or seconds < SHORTEST:
        return False
    (before, _), (after, total) = totals(reported), totals(now)
    grown = sum(layer.done for layer in now) > sum(layer.done for layer in reported)
    return grown or after - before >= STEP * total or seconds >= LONGEST
