"""Figures are compared with the stored ones: by ratio where there is one, and beyond their spread."""

from __future__ import annotations

import pytest

from tests.bench.__main__ import parse, printed
from tests.bench.comparison import far_worse, got_worse, stored_in
from tests.bench.document import DOCUMENT, row
from tests.bench.goals import Figure

START = Figure("process_kernel_start", 12.0, "ms", 8.0, 1.5, (11.0, 15.0))
RATE = Figure("submit-bulk", 8000.0, "sessions/s", 20000.0, 0.4, (7000.0, 8500.0))
MEMORY = Figure("idle-agent-memory", 130.0, "MB", None, None)


@pytest.mark.parametrize("figure", [START, RATE, MEMORY])
def test_rows_are_read_as_they_were_written(figure: Figure) -> None:
    assert stored_in(f"| figure | value |\n| --- | --- |\n{row(figure, '2026-01-01')}") == {figure.name: figure}
    assert parse(printed(figure)) == figure


def test_the_figures_of_the_page_are_found_among_its_other_tables() -> None:
    page = DOCUMENT.read_text()
    figures = page.partition("\n## Figures\n")[2].partition("\n## ")[0]
    assert stored_in(page) == stored_in(figures) != {}
    assert len(stored_in(figures)) == figures.count("\n| `")


@pytest.mark.parametrize(
    ("now", "worse"),
    [
        (START, False),
        # Within the stored spread, which reaches to 15 ms.
        (Figure(START.name, 14.0, "ms", 8.0, 1.75, (13.8, 14.2)), False),
        (Figure(START.name, 16.0, "ms", 8.0, 2.0, (15.8, 16.2)), True),
        # A slower machine slows the peer as well.
        (Figure(START.name, 24.0, "ms", 16.0, 1.5, (23.0, 25.0)), False),
        (Figure(START.name, 1.0, "ms", 8.0, 0.1, None), False),
        (Figure(RATE.name, 7200.0, "sessions/s", 20000.0, 0.36, None), False),
        (Figure(RATE.name, 6000.0, "sessions/s", 20000.0, 0.3, None), True),
        (Figure(RATE.name, 16000.0, "sessions/s", 20000.0, 0.8, None), False),
        (Figure(MEMORY.name, 140.0, "MB", None, None), False),
        (Figure(MEMORY.name, 150.0, "MB", None, None), True),
        (Figure("new", 1.0, "ms", None, None), False),
    ],
)
def test_what_got_worse(now: Figure, worse: bool) -> None:
    stored = {figure.name: figure for figure in (START, RATE, MEMORY)}
    sentences = list(got_worse([now], stored))
    assert len(sentences) == worse
    assert not worse or sentences[0].startswith(f"{now.name} got worse: ")


def test_what_is_far_worse() -> None:
    stored = {RATE.name: RATE}
    assert list(far_worse([Figure(RATE.name, 4100.0, "sessions/s", 20000.0, 0.205, None)], stored, 2)) == []
    found = list(far_worse([Figure(RATE.name, 3800.0, "sessions/s", 20000.0, 0.19, None)], stored, 2))
    assert found == ["submit-bulk is 2.11 times worse: 0.4 of its peer before, 0.19 of its peer now"]


def test_a_figure_that_was_nothing() -> None:
    none = Figure("fleet-1000-rows-written", 0.0, "rows", None, None)
    assert list(got_worse([none], {none.name: none})) == []
    assert len(list(got_worse([Figure(none.name, 3.0, "rows", None, None)], {none.name: none}))) == 1
