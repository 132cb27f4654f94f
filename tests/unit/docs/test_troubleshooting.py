"""The page on troubleshooting quotes what the product prints."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from docs.generator import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"
_ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
_FOLDERS = ("manager", "agent", "client", "rpc")
_LEAST = 20


def _texts(path: Path) -> list[str]:
    """The text literals of a module; what is put into them counts as a gap."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


@pytest.fixture(scope="module")
def printed() -> list[str]:
    return [text for folder in _FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) for text in _texts(path)]


def test_what_is_quoted_is_printed(printed: list[str]) -> None:
    quoted = _ROW.findall(_PAGE.read_text())
    assert len(quoted) >= _LEAST
    patterns = {text: re.compile(".*?".join(map(re.escape, text.split("…"))), re.DOTALL) for text in quoted}
    assert [text for text, pattern in patterns.items() if not any(map(pattern.search, printed))] == []
