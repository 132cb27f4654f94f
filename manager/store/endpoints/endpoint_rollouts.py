"""Starts, moves and reads rollouts of endpoints, and the shares of requests that their revisions have."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter
from sqlalchemy import Uuid, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from retinue.manager.domain.endpoints.bounds import checked
from retinue.manager.domain.endpoints.rollout import RolloutPolicy
from retinue.manager.domain.endpoints.states import RolloutState
from retinue.manager.store.postgres.constructs import columns_of, json_of, one_of, table_of
from retinue.manager.store.postgres.documents import Decoder, Unreadable
from retinue.manager.store.postgres.recordset import fetched
from retinue.manager.store.tables import EndpointTraffic, Rollout

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from sqlmodel.ext.asyncio.session import AsyncSession

_log = logging.getLogger(__name__)

_POLICY = TypeAdapter(RolloutPolicy)
ROLLOUT_POLICY = Decoder("the policy of a rollout", lambda stored: checked(_POLICY.validate_python(stored)))


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """The newest rollout of an endpoint."""

    endpoint_id: uuid.UUID
    from_revision: int
    to_revision: int
    state: RolloutState
    step: int
    promoted: bool
    message: str
    policy: RolloutPolicy | Unreadable
    since_time: dt.datetime


_rollout, _traffic = table_of(Rollout), table_of(EndpointTraffic)
_READ = select(*columns_of(Rollout, RolloutRecord)).where(_rollout.c.endpoint_id == one_of("ids", Uuid()))


async def read(tx: AsyncSession, endpoint_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, RolloutRecord]:
    """Returns the newest rollouts by endpoint."""
    rows = await tx.execute(_READ, {"ids": list(endpoint_ids)})
    states = {state.value: state for state in RolloutState}
    found = {}
    for row in fetched(rows):
        if (state := states.get(row["state"])) is None:
            _log.warning("the rollout of endpoint %s is in no known state: %r", row["endpoint_id"], row["state"])
            continue
        values = {**row, "state": state, "policy": ROLLOUT_POLICY.decode(row["policy"])}
        found[row["endpoint_id"]] = RolloutRecord(**values)
    return found


async def set_traffic(tx: AsyncSession, endpoint_id: uuid.UUID, shares: Iterable[tuple[int, int]]) -> None:
    """Replaces the shares of an endpoint's revisions."""
    await tx.execute(delete(_traffic).where(_traffic.c.endpoint_id == endpoint_id))
    rows = [
        {"endpoint_id": endpoint_id, "revision": revision, "percent": percent}
        for revision, percent in shares
        if percent
    ]
    await tx.execute(insert(_traffic), rows)


async def begin(
    tx: AsyncSession, endpoint_id: uuid.UUID, *, old: int, new: int, policy: RolloutPolicy, message: str
) -> None:
    """Starts a rollout, in place of one that is finished."""
    begun = {
        "from_revision": old,
        "to_revision": new,
        "state": RolloutState.PROGRESSING,
        "step": 0,
        "promoted": False,
        "message": message,
        "policy": json_of(policy),
    }
    made = insert(_rollout).values(endpoint_id=endpoint_id, **begun)
    changed = {**{name: made.excluded[name] for name in begun}, "since_time": func.now()}
    await tx.execute(made.on_conflict_do_update(index_elements=["endpoint_id"], set_=changed))


async def move(
    tx: AsyncSession, endpoint_id: uuid.UUID, *, state: RolloutState, step: int, message: str, restart: bool = True
) -> None:
    """Moves a rollout; with `restart`, its present step begins now."""
    moved = {"state": state, "step": step, "message": message, "promoted": False}
    restarted = {"since_time": func.now()} if restart else {}
    await tx.execute(update(_rollout).where(_rollout.c.endpoint_id == endpoint_id).values(**moved, **restarted))


async def promote(tx: AsyncSession, endpoint_id: uuid.UUID) -> None:
    """Lets the present step of a rollout end without waiting."""
    await tx.execute(update(_rollout).where(_rollout.c.endpoint_id == endpoint_id).values(promoted=True))
