"""How values of the library look at prompts and in notebooks. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Characters of output that a notebook shows: its last.
_SHOWN = 20_000


def as_html(title: str, facts: Mapping[str, object], output: str = "") -> str:
    """Returns a table of facts, without those that are empty, and output beneath; all of it is escaped, for programs
    print what they like.
    """
    rows = "".join(
        f'<tr><th style="text-align: left">{_escaped(name)}</th><td style="text-align: left">{_escaped(value)}</td></tr>'
        for name, value in facts.items()
        if value not in (None, "")
    )
    cut = "…\n" if len(output) > _SHOWN else ""
    printed = f"<pre>{_escaped(cut + output[-_SHOWN:])}</pre>" if output else ""
    return f"<div><b>{_escaped(title)}</b><table>{rows}</table>{printed}</div>"


def shortened(text: str, width: int = 80) -> str:
    """Returns a text as one line of at most `width` characters, for a `repr`."""
    line = text if text.isprintable() else text.encode("unicode_escape").decode()
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _escaped(value: object) -> str:
    import html  # noqa: PLC0415  # with all entities; few programs are notebooks

    return html.escape(str(value))
