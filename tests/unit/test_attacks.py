"""Each row of the table of attacks has tests, each mark names a row, and each claim of SECURITY.md names rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from docs.generator import ROOT, attacks
from tests.attacks import ATTACKS, Attack, Attacker, State, marked

if TYPE_CHECKING:
    from pathlib import Path

ROWS = {row.name: row for row in ATTACKS}
SHOWN = (State.WHOLE, State.PARTLY)
SECURITY = ROOT / "SECURITY.md"


def test_rows_are_named_once_and_say_what_is_missing() -> None:
    assert len(ROWS) == len(ATTACKS) > 76
    for row in ATTACKS:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", row.name), row.name
        assert bool(row.missing) is (row.state in (State.PARTLY, State.OPEN)), row.name
        assert bool(row.place) is (row.state is State.OPEN), row.name
        assert not row.place or (ROOT / row.place).is_dir(), row.place
        assert all(text.endswith(".") for text in (row.attempt, row.answer)), row.name


def test_every_row_that_is_answered_has_a_test() -> None:
    tests = marked()
    assert [row.name for row in ATTACKS if row.state in SHOWN and not tests.get(row.name)] == []


def test_every_mark_names_a_row() -> None:
    assert sorted(set(marked()) - set(ROWS)) == []


def test_a_row_with_tests_says_how_much_of_its_answer_they_show() -> None:
    """Who mends an open row changes its state with the test."""
    assert [name for name in marked() if name in ROWS and ROWS[name].state not in SHOWN] == []


@pytest.mark.parametrize(
    "text",
    [
        '@pytest.mark.attack("x")\ndef helper(): ...',
        'row = pytest.mark.attack("x")\n@row\ndef test_it(): ...',
        "@pytest.mark.attack(ROW)\ndef test_it(): ...",
        'pytestmark = pytest.mark.attack("x")\ndef test_it(): ...',
    ],
)
def test_a_mark_that_would_be_overlooked_is_an_error(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_it.py").write_text(text)
    monkeypatch.setattr("tests.attacks.TESTS", tmp_path)
    with pytest.raises(ValueError, match=r"test_it\.py"):
        marked()


def test_marks_are_found_below_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = tmp_path / "tests"
    (tests / "unit").mkdir(parents=True)
    (tests / "unit" / "test_it.py").write_text('@pytest.mark.attack("a", "b")\nasync def test_it(): ...')
    monkeypatch.setattr("tests.attacks.TESTS", tests)
    assert marked() == {"a": ["tests/unit/test_it.py::test_it"], "b": ["tests/unit/test_it.py::test_it"]}


def test_the_page_has_every_row() -> None:
    rows = [
        Attack("a", Attacker.USER, "Tries.", "`NOT_FOUND`."),
        Attack("b", Attacker.NODE, "Tries.", "No.", State.PARTLY, "The rest."),
    ]
    text = attacks.page(rows, {"a": ["tests/x.py::test_x"]})
    assert "### a\n\nTries. **Answer:** `NOT_FOUND`.\n\n* `tests/x.py::test_x`\n" in text
    assert "### b\n\nTries. **Answer:** No.\n\n**Partly:** The rest.\n" in text


def claims() -> list[tuple[str, list[str]]]:
    """Returns the points of SECURITY.md about what holds and what does not, and the rows that each names."""
    sections = re.split(r"^## ", SECURITY.read_text(), flags=re.MULTILINE)
    return [
        (point, re.findall(r"\]\(docs/security\.md#([\w-]+)\)", point))
        for section in sections
        if section.startswith(("What holds\n", "What is not protected\n"))
        for point in re.split(r"^\* ", section, flags=re.MULTILINE)[1:]
    ]


def test_each_claim_names_rows_that_there_are() -> None:
    assert len(claims()) > 10
    for point, names in claims():
        assert names, point
        assert set(names) <= set(ROWS), point


def test_no_claim_of_what_holds_rests_on_an_open_row_alone() -> None:
    holding = SECURITY.read_text().partition("## What holds\n")[2].partition("\n## ")[0]
    for point, names in claims():
        if point in holding:
            assert any(ROWS[name].state in SHOWN for name in names), point


def test_every_row_is_behind_a_claim() -> None:
    """What is tested and claimed nowhere is a claim that is missing."""
    named = {name for _, names in claims() for name in names}
    assert [row.name for row in ATTACKS if row.name not in named and row.state is not State.NO_FEATURE] == []
