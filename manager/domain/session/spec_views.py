"""Views of a spec: how much of it its readers get. Pure.

Variables often hold secrets, and with scripts they are most of the bytes of a large request. So lists and the journal
have neither (BASIC), and what shows all of a session (FULL) has the values of variables for its owner only.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class SpecView(Enum):
    """Amount of a request that a reader gets."""

    # Without variables and scripts.
    BASIC = "BASIC"
    # All but the values of variables.
    NAMES = "NAMES"
    # All.
    FULL = "FULL"


def names_only(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the names of variables with empty values."""
    return dict.fromkeys(environment, "")
