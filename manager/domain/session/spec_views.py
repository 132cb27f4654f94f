"""Views of a stored request: how much of it its readers get. Pure.

Variables often hold secrets, and with scripts they are most of the bytes of a large request. So lists and the journal
have neither (BASIC), and what shows all of a session (FULL) has the values of variables for its owner only.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any


class SpecView(Enum):
    """Amount of a request that a reader gets."""

    # Without variables and scripts.
    BASIC = "BASIC"
    # All but the values of variables.
    NAMES = "NAMES"
    # All.
    FULL = "FULL"


def basic(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a stored request without variables and scripts; `store.sessions.sessions` does the same in SQL."""
    return {
        **{key: value for key, value in stored.items() if key != "bootstrap_script"},
        "kernel": _without_variables(stored["kernel"]),
        "roles": {role: _without_variables(kernel) for role, kernel in stored["roles"].items()},
        "apps": [_without_variables(app) for app in stored.get("apps", ())],
    }


def names_only(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the names of variables with empty values."""
    return dict.fromkeys(environment, "")


def _without_variables(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in stored.items() if key != "environment"}
