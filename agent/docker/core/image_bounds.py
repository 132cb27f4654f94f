"""Bounds what an image may bring into a container: its user, variables and volumes. Pure.

An engine takes any amount. A container is then made for minutes, or fails at its start with words that fit no message,
and looks like trouble of the node that another node may not have.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_VOLUMES = 64
MAX_VARIABLES, MAX_VARIABLE, MAX_ENVIRONMENT = 4096, 128 << 10, 1 << 20
"""Number of variables, and bytes of one and of all: execve(2) takes no longer string, and little more in all."""
MAX_ID = 2**31 - 1
MAX_DIRECTORY = 4096
"""Characters of a path: the kernel takes no longer one."""
_NAME = r"[A-Za-z0-9_.][A-Za-z0-9_.@$-]{0,255}"
_USER = re.compile(rf"(?:{_NAME})(?::(?:{_NAME}))?")


MAX_WORDS, MAX_WORDS_BYTES = 1024, 64 << 10
"""Of an image's command, as of one that is asked for."""


def command_of(configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns an image's ENTRYPOINT and CMD; empty where it has none, or none that can be run."""
    lists = [configuration.get(name) or [] for name in ("Entrypoint", "Cmd")]
    words = [word for each in lists if isinstance(each, list) for word in each]
    if not all(isinstance(word, str) and "\0" not in word for word in words):
        return ()
    size = sum(len(word.encode(errors="replace")) for word in words)
    return tuple(words) if len(words) <= MAX_WORDS and size <= MAX_WORDS_BYTES else ()


def excess(configuration: Mapping[str, Any]) -> str:
    """Returns what of an image's configuration no container is made with, in words; empty when there is nothing."""
    return next(filter(None, (_user(configuration), _variables(configuration), _volumes(configuration))), "")


def variables_of(configuration: Mapping[str, Any]) -> frozenset[str]:
    """Returns the names of the variables that an image's configuration sets."""
    return frozenset(str(variable).partition("=")[0] for variable in configuration.get("Env") or [])


def working_directory(configuration: Mapping[str, Any]) -> str:
    """Returns where an image's command starts; empty for the root, which an image has that does not say."""
    directory = str(configuration.get("WorkingDir") or "")
    is_path = directory.startswith("/") and "\0" not in directory and len(directory) <= MAX_DIRECTORY
    return directory if is_path and directory.strip("/") else ""


def _user(configuration: Mapping[str, Any]) -> str:
    user = str(configuration.get("User") or "")
    if user and not _USER.fullmatch(user):
        return f"its user is not NAME[:GROUP]: {user[:64]!r}"
    if any(part.isdecimal() and int(part) > MAX_ID for part in user.split(":")):
        return f"its user has a number above {MAX_ID}: {user[:64]!r}"
    return ""


def _variables(configuration: Mapping[str, Any]) -> str:
    variables = configuration.get("Env") or []
    sizes = [len(str(variable).encode(errors="replace")) + 1 for variable in variables]
    if len(sizes) > MAX_VARIABLES or sum(sizes) > MAX_ENVIRONMENT or max(sizes, default=0) > MAX_VARIABLE:
        return f"its {len(sizes)} variables are more than {MAX_VARIABLES}, or too long"
    if any("\0" in str(variable) for variable in variables):
        return "one of its variables holds a NUL"
    return ""


def _volumes(configuration: Mapping[str, Any]) -> str:
    volumes = configuration.get("Volumes") or {}
    if len(volumes) > MAX_VOLUMES:
        return f"it has {len(volumes)} volumes, more than {MAX_VOLUMES}"
    if "/" in volumes:
        return "it has a volume at /"
    return ""
