"""The tests that the page on reliability names exist."""

from __future__ import annotations

import re

from docs.generator import ROOT

_FUNCTION = re.compile(r"def (test_\w+)\(")


def test_each_fault_names_tests_that_there_are() -> None:
    rows = [line for line in (ROOT / "docs/reliability.md").read_text().splitlines() if line.startswith("| ")]
    faults = [row for row in rows if row.count("|") == 4 and not row.startswith("| ---")]
    names = {name for row in faults for name in re.findall(r"`([\w./]+)`", row)}
    tests = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    functions = {name for text in tests.values() for name in _FUNCTION.findall(text)}
    files = {path.name for path in tests}
    named = {name for name in names if name.startswith("test_") or "/" in name}
    assert len(named) > 50
    missing = [
        name for name in sorted(named) if name not in functions and name not in files and not (ROOT / name).exists()
    ]
    assert missing == []
    states = {row.split("|")[2].strip().partition(" ")[0].rstrip(",") for row in faults} - {"state"}
    assert states == {"whole", "partly", "not"}
