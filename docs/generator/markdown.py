"""Pieces of Markdown and Mermaid."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# Not inside code spans.
_SPECIAL = re.compile(r"(`[^`]*`)|([<>])")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table; cells are Markdown of one line."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def line(text: str) -> str:
    """Returns a text on one line, with HTML escaped."""
    flat = " ".join(text.split())
    return _SPECIAL.sub(lambda found: found[1] or {"<": "&lt;", ">": "&gt;"}[found[2]], flat)


def paragraphs(text: str) -> str:
    """Returns a comment as paragraphs: lines are joined, empty lines divide."""
    return "\n\n".join(line(part) for part in re.split(r"\n\s*\n", text.strip()) if part.strip())


def first_sentence(text: str) -> str:
    """Returns the first sentence of a comment, without its end."""
    flat = " ".join(text.split())
    return re.split(r"(?<=[^.])[.:;](?:\s|$)", flat, maxsplit=1)[0]


def mermaid(text: str) -> str:
    """Returns a diagram in its fence."""
    return f"```mermaid\n{text.rstrip()}\n```\n"


def label(text: str) -> str:
    """Returns a text that stands for itself inside a diagram, on one line."""
    return " ".join(text.split()).replace('"', "'").replace("`", "").replace(";", ",").replace("#", "no. ")
