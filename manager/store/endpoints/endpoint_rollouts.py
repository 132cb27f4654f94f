"""Starts, moves and reads rollouts of endpoints, and the shares of requests that their revisions have."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pydantic import TypeAdapter
from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.domain.endpoints.bounds import checked
from retinue.manager.domain.endpoints.rollout import RolloutPolicy
from retinue.manager.domain.endpoints.states import RolloutState
from retinue.manager.store.postgres.documents import Decoder, Unreadable
from retinue.manager.store.postgres.recordset import fetched, recordset

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


async def read(tx: AsyncSession, endpoint_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, RolloutRecord]:
    """Returns the newest rollouts by endpoint."""
    rows = await tx.execute(
        text("""
            SELECT endpoint_id, from_revision, to_revision, state, step, promoted, message, policy, since_time
            FROM rollout WHERE endpoint_id = ANY(:ids)
        """),
        {"ids": list(endpoint_ids)},
    )
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
    await tx.execute(text("DELETE FROM endpoint_traffic WHERE endpoint_id = :id"), {"id": endpoint_id})
    await tx.execute(
        text("INSERT INTO endpoint_traffic (endpoint_id, revision, percent) VALUES (:id, :revision, :percent)"),
        [{"id": endpoint_id, "revision": revision, "percent": percent} for revision, percent in shares if percent],
    )


async def begin(
    tx: AsyncSession, endpoint_id: uuid.UUID, *, old: int, new: int, policy: RolloutPolicy, message: str
) -> None:
    """Starts a rollout, in place of one that is finished."""
    await tx.execute(
        text("""
            INSERT INTO rollout (endpoint_id, from_revision, to_revision, state, step, promoted, message, policy)
            SELECT :id, :old, :new, 'PROGRESSING', 0, FALSE, :message, r.policy
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(policy jsonb)
            ON CONFLICT (endpoint_id) DO UPDATE SET from_revision = excluded.from_revision, to_revision = excluded.to_revision,
                state = 'PROGRESSING', step = 0, promoted = FALSE, message = excluded.message, policy = excluded.policy, since_time = now()
        """),
        {
            "id": endpoint_id,
            "old": old,
            "new": new,
            "message": message,
            "rows": recordset([{"policy": policy}]),
        },
    )


async def move(
    tx: AsyncSession, endpoint_id: uuid.UUID, *, state: RolloutState, step: int, message: str, restart: bool = True
) -> None:
    """Moves a rollout; with `restart`, its present step begins now."""
    await tx.execute(
        text("""
            UPDATE rollout SET state = :state, step = :step, message = :message, promoted = FALSE,
                since_time = CASE WHEN :restart THEN now() ELSE since_time END
            WHERE endpoint_id = :id
        """),
        {"id": endpoint_id, "state": state, "step": step, "message": message, "restart": restart},
    )


async def promote(tx: AsyncSession, endpoint_id: uuid.UUID) -> None:
    """Lets the present step of a rollout end without waiting."""
    await tx.execute(text("UPDATE rollout SET promoted = TRUE WHERE endpoint_id = :id"), {"id": endpoint_id})
