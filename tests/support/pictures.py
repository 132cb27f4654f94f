"""Compares pictures of pages with stored ones: what is laid out otherwise differs, another age or address hardly does.

A picture is kept as the mean brightness of its cells of 8 by 8 pixels, as a small PNG of greys.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

CELL = 8
TOLERANCE = 0.01
"""The share of cells that may differ: a few lines of text on a page, and less than a row of a table."""
# Grey levels, of 256: letters in a cell change its mean by less.
_LEVELS = 12


def reduced(png: bytes) -> Image.Image:
    """Returns the cells of a PNG."""
    with Image.open(io.BytesIO(png)) as picture:
        width, height = picture.width // CELL, picture.height // CELL
        return picture.convert("L").resize((width, height), Image.Resampling.BOX)


def difference(one: Image.Image, other: Image.Image) -> float:
    """Returns the share of cells that differ, 0 to 1; 1 if the pictures have different sizes."""
    if one.size != other.size:
        return 1.0
    distances = np.abs(np.asarray(one, dtype=np.int16) - np.asarray(other, dtype=np.int16))
    return float((distances > _LEVELS).mean())


def load(file: Path) -> Image.Image | None:
    """Returns the cells that a file keeps; None if there is none."""
    if not file.is_file():
        return None
    with Image.open(file) as picture:
        return picture.convert("L")
