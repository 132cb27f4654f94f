"""The account of a kernel's user, in the texts of /etc/passwd and /etc/group. Pure.

The texts are an image's: they may hold anything, and lines that make no sense are left out.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.kernel.paths import HOME

if TYPE_CHECKING:
    from collections.abc import Mapping

ACCOUNT = "work"
"""Name of the account that every kernel of a cluster session has."""
SHELL = "/bin/sh"
BASH = "/bin/bash"
"""The shell of the account where the root has it."""
SHELLS = "/etc/shells"
"""The file that lists shells of logins: a server of ssh lets in no account with another."""
PROFILE = "/etc/profile.d/kernel-path.sh"
"""What shells of a login read after /etc/profile, which replaces their search path."""
MAX_ID = 2**31 - 1
"""The largest number of a user or a group that an image may name."""
MAX_GROUPS = 1024
"""Groups of a user beside its own."""
# Place of the number in a line.
_NUMBER = 2
# Place of a user's group in a line of users, and of the names of members in one of groups.
_GROUP = 3
_DIGITS = 10


class AccountError(Exception):
    """There is no such user, or it is none that a kernel may have; the text says why."""


@dataclass(frozen=True, slots=True)
class Account:
    """The account of a kernel's user: its number and group, its name or nothing, and further groups."""

    uid: int
    gid: int
    name: str = ""
    groups: tuple[int, ...] = ()


def login_variables(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns a user's names as variables of a login. An environment with one of them names the user in both."""
    name = environment.get("USER", environment.get("LOGNAME", name))
    return {"USER": name, "LOGNAME": environment.get("LOGNAME", name)}


def find_account(user: str, users: str, groups: str) -> Account:
    """Returns the account that an image means by `USER[:GROUP]`, names or numbers, as container engines do.

    `users` and `groups` are the texts of the image. A user without a group is in root's, as images that are made for
    any user expect it. Raises AccountError.
    """
    wanted, _, group = user.partition(":")
    number = _number(wanted)
    # A number is never looked up as a name.
    entry = next(
        (
            entry
            for entry in _entries(users)
            if (entry[0] == wanted if number is None else _at(entry, _NUMBER) == number)
        ),
        [],
    )
    uid, name = (_at(entry, _NUMBER), entry[0]) if entry else (number, "")
    if uid is None:
        raise AccountError(f"it has no user {wanted[:64]!r}")
    if uid > MAX_ID:
        raise AccountError(f"its user has a number above {MAX_ID}")
    if uid == 0:
        raise AccountError("its user is root by another name")
    own = _find_group(group, groups) if group else _at(entry, _GROUP) or 0
    if own > MAX_ID:
        raise AccountError(f"its group has a number above {MAX_ID}")
    further = () if group or not name else _groups_of(name, groups)
    return Account(uid, own, name, further)


def _find_group(group: str, groups: str) -> int:
    number = _number(group)
    if number is not None:
        return number
    found = (_at(entry, _NUMBER) for entry in _entries(groups) if entry[0] == group)
    if (named := next((number for number in found if number is not None), None)) is None:
        raise AccountError(f"it has no group {group[:64]!r}")
    return named


def _groups_of(name: str, groups: str) -> tuple[int, ...]:
    """Returns the groups that have a user among their members. Raises AccountError."""
    found = [
        number
        for entry in _entries(groups)
        if name in ",".join(entry[_GROUP : _GROUP + 1]).split(",")
        and (number := _at(entry, _NUMBER)) is not None
        and number <= MAX_ID
    ]
    if len(found) > MAX_GROUPS:
        raise AccountError(f"its user has {len(found)} groups, more than {MAX_GROUPS}")
    return tuple(found)


def with_user(text: str, uid: int, gid: int, *, named: bool, shell: str = SHELL) -> str:
    """Returns the users of an image with the kernel's among them; with `named`,
    under the name that is the same everywhere.

    What the image calls its user stays the first answer for the number, and ours becomes the first for the name.
    """
    line = f"{ACCOUNT}:x:{uid}:{gid}::{HOME}:{shell}\n"
    entries = _entries(text)
    same_name = [entry for entry in entries if entry[0] == ACCOUNT]
    same_number = [entry for entry in entries if entry[_NUMBER:][:1] == [str(uid)]]
    if named and same_name:
        fits = same_name[0] in same_number and same_name[0][5:] == [HOME, shell]
        return text if fits else line + text
    return text if same_number and not named else _terminated(text) + line


def with_group(text: str, gid: int) -> str:
    """Returns the groups of an image with the kernel's among them."""
    if any(entry[_NUMBER:][:1] == [str(gid)] for entry in _entries(text)):
        return text
    return f"{_terminated(text)}{ACCOUNT}:x:{gid}:\n"


def with_shell(text: str, shell: str) -> str:
    """Returns the shells of an image with that of the kernel's account among them; without any, /bin/sh counts."""
    listed = [line.strip() for line in text.split("\n")] if text else [SHELL]
    if shell in listed:
        return text
    before = _terminated(text) if text else f"{SHELL}\n"
    return f"{before}{shell}\n"


def _entries(text: str) -> list[list[str]]:
    # Not `splitlines`: no other reader of these files takes a form feed for the end of a line.
    return [line.split(":") for line in text.split("\n")]


def _at(entry: list[str], place: int) -> int | None:
    return _number(entry[place]) if place < len(entry) else None


def _number(text: str) -> int | None:
    """Returns a number as it stands in these files; None for anything else."""
    # Ten digits hold all that there are, and an `int` of millions of them would take long.
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None


def _terminated(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def profile(search_path: str) -> str:
    """Returns the text by which shells of a login find what the kernel's command finds."""
    whole, begin = shlex.quote(f":{search_path}"), shlex.quote(f":{search_path}:")
    return f"""# The search path of the kernel's command comes before that of /etc/profile.
case ":$PATH" in
{whole}|{begin}*) ;;
*) PATH={shlex.quote(search_path)}:$PATH ;;
esac
"""
