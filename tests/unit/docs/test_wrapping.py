"""Pages are wrapped so that they say the same as before."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from docs.generator import ROOT
from docs.generator.wrapping import COLUMNS, wrap
from tests.unit.docs.project_files import listed

_WORDS = " ".join(["word"] * 60)


def shown(text: str) -> str:
    """What a reader sees: where a line of prose ends makes no difference, inside code it does."""
    made = MarkdownIt("commonmark").enable("table").render(text)
    parts = re.split(r"(<pre>.*?</pre>)", made, flags=re.DOTALL)
    return "".join(part if part.startswith("<pre>") else " ".join(part.split()) for part in parts)


@pytest.mark.parametrize("name", listed("*.md"))
def test_a_page_shows_the_same_and_is_wrapped_once(name: str) -> None:
    text = (ROOT / name).read_text()
    wrapped = wrap(text)
    assert shown(wrapped) == shown(text)
    assert wrap(wrapped) == wrapped


@pytest.mark.parametrize(
    "text",
    [
        f"{_WORDS}\n",
        f"* {_WORDS}\n  {_WORDS}\n* short\n",
        f"12. {_WORDS}\n\n    {_WORDS}\n",
        f"{_WORDS} `a span of code, {_WORDS[:60]}` {_WORDS}\n",
        f"{_WORDS[:96]} - {_WORDS[:95]} 1. {_WORDS[:99]} # {_WORDS}\n",
        f"{_WORDS}\n```sh\n{_WORDS}\n```\n{_WORDS}\n",
    ],
    ids=["paragraph", "items", "number", "span", "marks", "fence"],
)
def test_prose_ends_at_the_last_column(text: str) -> None:
    wrapped = wrap(text)
    assert shown(wrapped) == shown(text)
    prose = re.sub(r"```.*?```", "", wrapped, flags=re.DOTALL)
    assert max(map(len, prose.splitlines())) <= COLUMNS


@pytest.mark.parametrize(
    "text",
    [
        f"# {_WORDS}\n",
        f"| {_WORDS} |\n| --- |\n| {_WORDS} |\n",
        f"```\n{_WORDS}\n```\n",
        f"Text:\n\n    {_WORDS}\n",
        f"[name]: https://example.org/{'x' * 120}\n",
        f"<!-- {_WORDS} -->\n",
    ],
    ids=["heading", "table", "fence", "indented code", "definition", "comment"],
)
def test_what_is_no_prose_stays(text: str) -> None:
    assert wrap(text) == text
