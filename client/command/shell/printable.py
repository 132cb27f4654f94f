"""Text of others as a terminal may show it: nothing in it moves the cursor or colours the screen."""

from __future__ import annotations


def safe(text: str) -> str:
    """Returns the text with everything that is not printable as an escape,
    line breaks and directions of writing included.
    """
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", errors="backslashreplace").decode("ascii")
