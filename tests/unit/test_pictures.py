"""The comparison of pictures finds a layout that broke, and passes what differs from run to run."""

from __future__ import annotations

import io

import pytest
from PIL import Image, ImageDraw

from tests.support.pictures import TOLERANCE, difference, load, reduced

SIZE = (1440, 900)


def _page(*, sidebar: bool = True, age: str = "12s", rows: int = 8, shift: int = 0) -> Image.Image:
    """A page with a side bar and a table, by its boxes and words."""
    page = Image.new("RGB", SIZE, "#f6f7f9")
    draw = ImageDraw.Draw(page)
    left = 224 if sidebar else 0
    if sidebar:
        draw.rectangle((0, 0, left, SIZE[1]), fill="#ffffff", outline="#888")
        for at in range(10):
            draw.text((20, 60 + 36 * at), "A place to go", fill="#222")
    for row in range(rows):
        top = 120 + 36 * row + shift
        draw.rectangle((left + 24, top, SIZE[0] - 24, top + 36), outline="#ccc")
        draw.rectangle((left + 40, top + 8, left + 120, top + 28), fill="#14692f")
        draw.text((left + 200, top + 10), f"session-{row} {age} of alice", fill="#222")
    return page


def _png(page: Image.Image) -> bytes:
    written = io.BytesIO()
    page.save(written, "PNG")
    return written.getvalue()


def test_other_ages_pass() -> None:
    assert difference(reduced(_png(_page())), reduced(_png(_page(age="34m 9s")))) <= TOLERANCE


@pytest.mark.parametrize("broken", [_page(sidebar=False), _page(rows=3), _page(shift=120)])
def test_another_layout_fails(broken: Image.Image) -> None:
    assert difference(reduced(_png(_page())), reduced(_png(broken))) > TOLERANCE


def test_another_size_is_all_different() -> None:
    page = reduced(_png(_page()))
    assert difference(page, page.crop((0, 0, 100, 100))) == 1.0


def test_what_is_kept_is_what_was_drawn(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("pictures") / "page.png"
    assert load(file) is None
    page = reduced(_png(_page()))
    page.save(file)
    kept = load(file)
    assert kept is not None
    assert difference(page, kept) == 0.0
