"""Isolations between the wire and the values that are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.manager.domain.session.isolation import Isolation
from retinue.types.v1 import isolation_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

ISOLATIONS: Mapping[int, Isolation] = {isolation_pb2.Isolation.Value(f"ISOLATION_{item}"): item for item in Isolation}


def isolation_number(isolation: Isolation | None) -> isolation_pb2.Isolation.ValueType:
    """Returns the number of an isolation on the wire; unspecified for None."""
    return isolation_pb2.Isolation.Value("ISOLATION_UNSPECIFIED" if isolation is None else f"ISOLATION_{isolation}")
