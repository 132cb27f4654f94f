"""Output of ended kernels: what is still to be fetched from agents, and what is kept."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Executable,
    Integer,
    LargeBinary,
    Select,
    Text,
    Uuid,
    and_,
    bindparam,
    delete,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from retinue.manager.store.postgres.constructs import parameter, table_of, word, words
from retinue.manager.store.postgres.recordset import fetched
from retinue.manager.store.sessions.output_streams import StreamRuns
from retinue.manager.store.tables import Agent, Attempt, Kernel, KernelLog

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlmodel.ext.asyncio.session import AsyncSession

_agent, _attempt, _kernel, _log = table_of(Agent), table_of(Attempt), table_of(Kernel), table_of(KernelLog)


@dataclass(frozen=True, slots=True)
class PendingOutput:
    """An ended attempt whose output, of `log_size` bytes, is still on its agent."""

    kernel_id: uuid.UUID
    epoch: int
    session_id: uuid.UUID
    log_size: int
    agent_id: str
    address: str


@dataclass(frozen=True, slots=True)
class OutputSource:
    """The location of an attempt's output: on its agent or not; `live` when it or a later attempt may print more,
    `newest` the last epoch.
    """

    newest: int
    epoch: int
    agent_id: str
    address: str
    on_agent: bool
    live: bool


_PENDING = (
    select(
        _attempt.c.kernel_id,
        _attempt.c.epoch,
        _attempt.c.session_id,
        _attempt.c.log_size,
        _attempt.c.agent_id,
        _agent.c.address,
    )
    .join_from(_attempt, _agent, _agent.c.id == _attempt.c.agent_id)
    .where(
        _attempt.c.log_pending,
        _agent.c.state != word("LOST"),
        _attempt.c.agent_id != func.all(bindparam("busy", type_=ARRAY(Text()))),
    )
    .order_by(
        # An agent that does not answer holds up no other.
        func.row_number().over(partition_by=_attempt.c.agent_id, order_by=_attempt.c.end_time),
        _attempt.c.end_time,
    )
    .limit(parameter("most", Integer()))
)


async def read_pending(tx: AsyncSession, limit: int, busy: Collection[str]) -> list[PendingOutput]:
    """Returns outputs that are still on their agents, those of all agents in turns, less `busy` ones."""
    rows = await tx.execute(_PENDING, {"busy": list(busy), "most": limit})
    return [PendingOutput(**row) for row in fetched(rows)]


# Attempts of a kernel whose output is kept: the newest that printed anything.
KEPT_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """The kept tail of an attempt's output, and when the attempt ended."""

    start_offset: int = 0
    data: bytes = b""
    streams: StreamRuns = field(default_factory=StreamRuns)
    end_time: dt.datetime | None = None


_KERNEL, _NUMBER = parameter("kernel", Uuid()), parameter("number", Integer())


def _making_kept() -> Executable:
    tail = {
        "start_offset": parameter("offset", BigInteger()),
        "data": parameter("tail", LargeBinary()),
        "streams": parameter("runs", LargeBinary()),
    }
    made = insert(_log).values(kernel_id=_KERNEL, epoch=_NUMBER, **tail)
    return made.on_conflict_do_update(
        index_elements=["kernel_id", "epoch"], set_={name: made.excluded[name] for name in tail}
    )


def _making_dropped() -> Executable:
    """Output of the attempts of a kernel before those whose output is kept."""
    newer = _log.alias("newer")
    past = select(newer.c.epoch).where(newer.c.kernel_id == _KERNEL).order_by(newer.c.epoch.desc())
    last = past.offset(KEPT_ATTEMPTS).limit(1).scalar_subquery()
    return delete(_log).where(_log.c.kernel_id == _KERNEL, _log.c.epoch <= last)


_KEPT, _DROPPED = _making_kept(), _making_dropped()
_FETCHED = (
    update(_attempt).where(_attempt.c.kernel_id == _KERNEL, _attempt.c.epoch == _NUMBER).values(log_pending=False)
)


async def keep(tx: AsyncSession, kernel_id: uuid.UUID, epoch: int, output: KeptOutput) -> None:
    """Keeps the tail of an ended attempt's output; its agent may forget it from then on. No data keeps nothing."""
    key = {"kernel": kernel_id, "number": epoch}
    if output.data:
        tail = {"offset": output.start_offset, "tail": output.data, "runs": output.streams.encode()}
        await tx.execute(_KEPT, {**key, **tail})
        await tx.execute(_DROPPED, {"kernel": kernel_id})
    await tx.execute(_FETCHED, key)


async def read_kept(tx: AsyncSession, kernel_id: uuid.UUID, epoch: int) -> KeptOutput:
    """Returns the kept output of an attempt."""
    of_attempt = and_(_attempt.c.kernel_id == _log.c.kernel_id, _attempt.c.epoch == _log.c.epoch)
    query = (
        select(_log.c.start_offset, _log.c.data, _log.c.streams, _attempt.c.end_time)
        .outerjoin_from(_log, _attempt, of_attempt)
        .where(_log.c.kernel_id == kernel_id, _log.c.epoch == epoch)
    )
    row = (await tx.execute(query)).one_or_none()
    return KeptOutput() if row is None else KeptOutput(row[0], bytes(row[1]), StreamRuns.decode(bytes(row[2])), row[3])


def _making_source(number: ColumnElement[int]) -> Select[*tuple[Any, ...]]:
    """The location of the output of a kernel's attempt with a number; of none, if there is no such attempt."""
    is_there = or_(_attempt.c.end_time.is_(None), _attempt.c.log_pending)
    return (
        select(
            _kernel.c.epoch.label("newest"),
            func.coalesce(_attempt.c.epoch, _kernel.c.epoch).label("epoch"),
            func.coalesce(_attempt.c.agent_id, word("")).label("agent_id"),
            func.coalesce(_agent.c.address, word("")).label("address"),
            and_(_attempt.c.kernel_id.is_not(None), is_there).label("on_agent"),
            _kernel.c.state.not_in(words("TERMINATED", "CANCELLED")).label("live"),
        )
        .outerjoin_from(_kernel, _attempt, and_(_attempt.c.kernel_id == _kernel.c.id, _attempt.c.epoch == number))
        .outerjoin(_agent, _agent.c.id == _attempt.c.agent_id)
        .where(_kernel.c.id == _KERNEL)
    )


_NEWEST_SOURCE = _making_source(_kernel.c.epoch)
_SOURCE = _making_source(_NUMBER).where(_attempt.c.epoch.is_not(None))


async def read_source(tx: AsyncSession, kernel_id: uuid.UUID, epoch: int = 0) -> OutputSource | None:
    """Returns where the output of a kernel's attempt is, by default of its newest;
    None when there is no such kernel, or attempt.
    """
    rows = await tx.execute(_SOURCE if epoch else _NEWEST_SOURCE, {"kernel": kernel_id, "number": epoch})
    found = fetched(rows)
    return OutputSource(**found[0]) if found else None
