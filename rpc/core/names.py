"""The rule of names of sessions, accounts, groups, endpoints, agents and routers."""

from __future__ import annotations

import re

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
NAME_RULE = "1-63 characters a-z, 0-9 and -, with no dash first or last"


def is_name(text: str) -> bool:
    """Returns whether a text is a name."""
    return _NAME.fullmatch(text) is not None
