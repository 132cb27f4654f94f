"""Measurements, each as a ratio to a bare equivalent or a peer in the same run."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def report(name: str, value: float, unit: str, peer: float | None, *, spread: Sequence[float] = ()) -> None:
    """Prints a figure beside its peer's, as `name value unit peer ratio`; without a peer both are `-`.

    `spread` are the measurements behind a median: the smallest and the largest follow as `min=… max=…`.
    """
    against = "- -" if peer is None else f"{peer:.4g} {value / peer:.4g}"
    around = f" min={min(spread):.4g} max={max(spread):.4g}" if len(spread) > 1 else ""
    sys.stdout.write(f"{name} {value:.4g} {unit} {against}{around}\n")
    sys.stdout.flush()


def end_politely() -> None:
    """A request to end is taken as an interrupt: what was started is ended and removed then, too."""
    # A shell has what it starts in the background ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
