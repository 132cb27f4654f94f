"""Wraps the prose of Markdown pages: `python docs/generator/wrapping.py FILE…` rewrites those that are not wrapped.

Tables, code, headings, comments and definitions of links stay as they are; code spans and addresses are never broken.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

COLUMNS = 100
_FENCE = re.compile(r" *(```|~~~)")
_ITEM = re.compile(r"( *)([*+-]|\d+[.)])( +)")
# Lines that are no prose: tables, headings, HTML, quotations, definitions of links, rules, code,
# and paragraphs with breaks in them.
_AS_IT_IS = re.compile(r" *(\||#{1,6} |<|>|\[[^\]]+\]: |([*_-] *){3,}$)|.*(  |\\)$")
# A word with the code spans in it; a span has no end in another paragraph.
_WORD = re.compile(r"(?:(`+)(?!`).*?(?<!`)\1(?!`)|\S)+")
# Text that would begin a block of its own at the beginning of a line.
_BEGINS = re.compile(r"([*+-]|\d+[.)]|#{1,6}|=+|-+)$|[|>]|```|~~~")


def wrap(text: str) -> str:
    """Returns a page with its paragraphs and list items wrapped at COLUMNS."""
    made: list[str] = []
    block: list[str] = []
    fence = ""

    def flush() -> None:
        if block:
            made.extend(_wrapped(block))
            block.clear()

    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if fence or mark:
            flush()
            made.append(line)
            fence = ("" if mark and mark[1] == fence else fence) if fence else mark[1] if mark else ""
        elif not line.strip() or _AS_IT_IS.fullmatch(line) or _AS_IT_IS.match(line) or _is_code(line, block, made):
            flush()
            made.append(line)
        elif _ITEM.match(line):
            flush()
            block.append(line)
        else:
            block.append(line)
    flush()
    return "\n".join(made)


def _is_code(line: str, block: list[str], made: list[str]) -> bool:
    """Says whether an indented line is code: one that continues neither a paragraph nor a list item before it."""
    if block or not line.startswith("    "):
        return False
    before = next((other for other in reversed(made) if other.strip() and not other.startswith(" ")), "")
    return not _ITEM.match(before)


def _wrapped(block: list[str]) -> list[str]:
    item = _ITEM.match(block[0])
    first = item[0] if item else re.match(" *", block[0])[0]  # type: ignore[index]  # it always matches
    rest = " " * len(first)
    prose = " ".join(line.strip() for line in block)[len(first.strip()) :].strip()
    lines, current = [], first
    empty = True
    for word in _words(prose):
        if not empty and len(current) + 1 + len(word) > COLUMNS:
            lines.append(current)
            current, empty = rest, True
        current += word if empty else f" {word}"
        empty = False
    return [*lines, current]


def _words(prose: str) -> list[str]:
    """Returns the words between which a line may end."""
    words: list[str] = []
    for found in _WORD.finditer(prose):
        if words and _BEGINS.match(found[0]):
            words[-1] += f" {found[0]}"
        else:
            words.append(found[0])
    return words


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        before = page.read_text()
        if (after := wrap(before)) != before:
            page.write_text(after)
            sys.stdout.write(f"{name}\n")
