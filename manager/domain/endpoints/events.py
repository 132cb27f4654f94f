"""What happens to endpoints, as the journal records it beside what happens to sessions:
JSON by the names of the fields. Pure.

The subject of these entries is the endpoint's id. Tokens and variables are in none of them.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, get_args

from pydantic import TypeAdapter, ValidationError

from retinue.manager.domain.endpoints.scaling import Decision
from retinue.manager.domain.endpoints.states import Lifecycle, ReplicaState, RolloutState

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class EndpointCreated:
    """An endpoint was made."""

    name: str
    host_label: str
    target: int


@dataclass(frozen=True, slots=True)
class EndpointUpdated:
    """What is asked for changed, in these fields."""

    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RevisionDeployed:
    """A revision was made."""

    revision: int
    author: str


@dataclass(frozen=True, slots=True)
class RolloutMoved:
    """A rollout began, or moved."""

    old: int
    new: int
    state: RolloutState
    step: int
    message: str


@dataclass(frozen=True, slots=True)
class TrafficChanged:
    """The shares of revisions changed: (revision, percent)."""

    shares: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TargetChanged:
    """The autoscaler decided for another number of replicas."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class ReplicaMoved:
    """A replica moved; one that is STARTING was made."""

    session_id: uuid.UUID
    session: str
    revision: int
    state: ReplicaState
    message: str
    agent: str


@dataclass(frozen=True, slots=True)
class EndpointEnded:
    """An endpoint is being deleted, or is gone."""

    state: Lifecycle


@dataclass(frozen=True, slots=True)
class FloorSet:
    """A floor was set; without an end it was taken away."""

    replicas: int
    end_time: dt.datetime | None


EndpointEventBody: TypeAlias = (
    EndpointCreated
    | EndpointUpdated
    | RevisionDeployed
    | RolloutMoved
    | TrafficChanged
    | TargetChanged
    | ReplicaMoved
    | EndpointEnded
    | FloorSet
)
ENDPOINT_KINDS: Mapping[type[EndpointEventBody], str] = {
    EndpointCreated: "ENDPOINT_CREATED",
    EndpointUpdated: "ENDPOINT_UPDATED",
    RevisionDeployed: "ENDPOINT_REVISION",
    RolloutMoved: "ENDPOINT_ROLLOUT",
    TrafficChanged: "ENDPOINT_TRAFFIC",
    TargetChanged: "ENDPOINT_SCALED",
    ReplicaMoved: "ENDPOINT_REPLICA",
    EndpointEnded: "ENDPOINT_ENDED",
    FloorSet: "ENDPOINT_FLOOR",
}
ENDPOINT_PREFIX = "ENDPOINT_"
_PARSERS: Mapping[str, TypeAdapter[EndpointEventBody]] = {
    kind: TypeAdapter(what) for what, kind in ENDPOINT_KINDS.items()
}
_DECISION = TypeAdapter(Decision)
EVENT_BODIES = get_args(EndpointEventBody)


def parse_endpoint_event(kind: str, stored: str) -> EndpointEventBody | None:
    """Returns an entry of the journal from its kind and its JSON; None when it cannot be read. Never raises."""
    try:
        return _PARSERS[kind].validate_json(stored)
    except (LookupError, ValidationError):
        return None


def parse_decision(stored: object) -> Decision | None:
    """Returns a stored decision; None when there is none, or it cannot be read. Never raises."""
    try:
        return _DECISION.validate_python(stored) if stored else None
    except ValidationError:
        return None
