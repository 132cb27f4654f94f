"""Pull policies between the wire and the values that are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.manager.domain.session.images import PullPolicy
from retinue.types.v1 import pull_policy_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

PULL_POLICIES: Mapping[int, PullPolicy] = {
    pull_policy_pb2.PullPolicy.Value(f"PULL_POLICY_{item}"): item for item in PullPolicy
}


def pull_policy_number(policy: PullPolicy | None) -> pull_policy_pb2.PullPolicy.ValueType:
    """Returns the number of a pull policy on the wire; unspecified for None."""
    return pull_policy_pb2.PullPolicy.Value("PULL_POLICY_UNSPECIFIED" if policy is None else f"PULL_POLICY_{policy}")
