"""The account of a kernel's user, in the texts of /etc/passwd and /etc/group. Pure."""

from __future__ import annotations

from retinue.agent.kernel.paths import HOME

ACCOUNT = "work"
"""Name of the account that every kernel of a cluster session has."""
SHELL = "/bin/sh"
_NUMBER = 2
"""Place of the number in a line."""


def with_user(text: str, uid: int, gid: int, *, named: bool) -> str:
    """Returns the users of an image with the kernel's among them; with `named`,
    under the name that is the same everywhere.

    What the image calls its user stays the first answer for the number, and ours becomes the first for the name.
    """
    line = f"{ACCOUNT}:x:{uid}:{gid}::{HOME}:{SHELL}\n"
    entries = _entries(text)
    same_name = [entry for entry in entries if entry[0] == ACCOUNT]
    same_number = [entry for entry in entries if entry[_NUMBER:][:1] == [str(uid)]]
    if named and same_name:
        fits = same_name[0] in same_number and same_name[0][5:] == [HOME, SHELL]
        return text if fits else line + text
    return text if same_number and not named else _terminated(text) + line


def with_group(text: str, gid: int) -> str:
    """Returns the groups of an image with the kernel's among them."""
    if any(entry[_NUMBER:][:1] == [str(gid)] for entry in _entries(text)):
        return text
    return f"{_terminated(text)}{ACCOUNT}:x:{gid}:\n"


def _entries(text: str) -> list[list[str]]:
    return [line.split(":") for line in text.splitlines()]


def _terminated(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
