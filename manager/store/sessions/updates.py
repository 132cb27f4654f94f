"""Updates sessions and kernels."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import psycopg
from sqlalchemy import (
    ARRAY,
    Boolean,
    Float,
    Integer,
    Text,
    Uuid,
    and_,
    case,
    cast,
    func,
    literal_column,
    not_,
    null,
    or_,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH

from retinue.manager.domain.errors import NameTaken
from retinue.manager.domain.reasons import ConditionType
from retinue.manager.domain.session.events import PulledBytes
from retinue.manager.domain.session.images import SeenImage
from retinue.manager.domain.session.spec_codec import encode
from retinue.manager.domain.session.states import KernelState, Result, SessionState
from retinue.manager.store.postgres.constructs import (
    EMPTY_LIST,
    EMPTY_OBJECT,
    Construct,
    json_parameter,
    objects,
    one_of,
    parameter,
    span,
    table_of,
    value_of,
    word,
    words,
)
from retinue.manager.store.postgres.database import Statement, Transaction, run
from retinue.manager.store.postgres.recordset import json_text, recordset
from retinue.manager.store.tables import Kernel, Session

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.domain.session.spec import SessionSpec


_kernel, _session = table_of(Kernel), table_of(Session)
_IS_ASKED = _session.c.id == one_of("ids", Uuid())
# What a session's spec may change in.
_CHANGEABLE = ("name", "priority", "hold")


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """A session after it moved. `delay` is in seconds until the next try, None to leave that alone;
    `force` shortens its grace.
    """

    id: uuid.UUID
    state: SessionState
    result: Result
    exit_code: int | None
    reason: str
    message: str
    failed_starts: int
    retries: int
    failed_agents: Sequence[str]
    delay: float | None
    force: bool


@dataclass(frozen=True, slots=True)
class KernelUpdate:
    """A kernel after it moved. `pull` is None to leave the progress of a pull as it is while the kernel is PULLING."""

    id: uuid.UUID
    state: KernelState
    agent_id: str | None
    exit_code: int | None
    reason: str
    image: SeenImage
    pull: PulledBytes | None


def _making_updated_sessions() -> Construct:
    """Sessions that moved, with all that follows from their new states."""
    columns = _session.c
    of = {name: columns[name].type for name in _MOVED if name != "delay"}
    r = objects("r", "rows", **of, delay=Float())
    waits, runs, ends = (r.c.state == word(state) for state in ("PENDING", "RUNNING", "CANCELLED"))
    is_over = r.c.state.in_(words("TERMINATED", "CANCELLED"))
    begin = func.coalesce(columns.start_time, func.now())
    oom = cast(literal_column(f"'$[*] ? (@.type == \"{ConditionType.OOM_KILLED}\")'"), JSONPATH)
    return Construct(
        update(_session)
        .where(columns.id == r.c.id)
        .values(
            state=r.c.state,
            result=r.c.result,
            exit_code=r.c.exit_code,
            reason=r.c.reason,
            message=r.c.message,
            failed_starts=r.c.failed_starts,
            retries=r.c.retries,
            failed_agents=r.c.failed_agents,
            force=or_(columns.force, r.c.force),
            version=columns.version + literal_column("1"),
            state_time=case((r.c.state != columns.state, func.now()), else_=columns.state_time),
            start_time=case((runs, begin), (waits, null()), else_=columns.start_time),
            expire_time=case((runs, begin + span(columns.time_limit_seconds))),
            end_time=case((is_over, func.now())),
            last_failure=case(
                (r.c.delay.is_not(None), r.c.reason + literal_column("': '", Text()) + r.c.message),
                else_=columns.last_failure,
            ),
            network=case((waits, word("")), else_=columns.network),
            nomination=case((waits, columns.nomination), else_=EMPTY_OBJECT),
            explanation=case((waits, columns.explanation), else_=EMPTY_OBJECT),
            conditions=case(
                (or_(ends, waits), EMPTY_LIST),
                (r.c.state == word("TERMINATED"), func.jsonb_path_query_array(columns.conditions, oom)),
                else_=columns.conditions,
            ),
            next_try_time=case((r.c.delay.is_(None), columns.next_try_time), else_=func.now() + span(r.c.delay)),
        )
    )


def _making_updated_kernels() -> Construct:
    columns = _kernel.c
    r = objects(
        "r",
        "rows",
        **{name: columns[name].type for name in ("id", "state", "agent_id", "exit_code", "reason", "pull")},
        image=JSONB(),
    )
    waits, pulls = r.c.state == word("PENDING"), r.c.state == word("PULLING")
    return Construct(
        update(_kernel)
        .where(columns.id == r.c.id)
        .values(
            state=r.c.state,
            agent_id=r.c.agent_id,
            exit_code=r.c.exit_code,
            reason=r.c.reason,
            address=case((waits, word("")), else_=columns.address),
            image_digest=value_of(r.c.image, literal_column("'digest'")),
            image_id=value_of(r.c.image, literal_column("'id'")),
            service_ports=r.c.image[literal_column("'service_ports'", Text())],
            pull=case((pulls, func.coalesce(r.c.pull, columns.pull)), else_=EMPTY_OBJECT),
        )
    )


_MOVED = [field.name for field in fields(SessionUpdate)]
_UPDATED_SESSIONS, _UPDATED_KERNELS = _making_updated_sessions(), _making_updated_kernels()


def update_statements(
    sessions: Iterable[SessionUpdate], kernels: Iterable[KernelUpdate]
) -> tuple[Statement, Statement]:
    """Returns the statements that update sessions and kernels which moved."""
    return (
        Statement(_UPDATED_SESSIONS, {"rows": recordset(sessions)}),
        Statement(_UPDATED_KERNELS, {"rows": recordset(kernels)}),
    )


def _making_changed() -> Construct:
    columns, holds = _session.c, parameter("holds", Boolean())
    changeable = cast(parameter("changeable", ARRAY(Text)), ARRAY(Text))
    return Construct(
        update(_session)
        .where(columns.id == parameter("changed_id", Uuid()))
        .values(
            name=parameter("new_name", Text()),
            priority=parameter("new_priority", Integer()),
            hold=holds,
            spec=columns.spec.op("-")(changeable).op("||")(json_parameter("members")),
            nomination=case((holds, EMPTY_OBJECT), else_=columns.nomination),
            state_time=case((and_(columns.hold, not_(holds)), func.now()), else_=columns.state_time),
            version=columns.version + literal_column("1"),
        )
    )


_CHANGED = _making_changed()


async def change(tx: Transaction, session_id: uuid.UUID, spec: SessionSpec) -> None:
    """Gives a locked session the name, priority and hold of a changed spec; one that is released begins to wait.
    Raises NameTaken, and then the transaction has failed.
    """
    # All else in the document stays: a newer manager may have written members that are not known here.
    changed = {name: value for name, value in encode(spec).items() if name in _CHANGEABLE}
    try:
        await tx.pipeline(
            Statement(
                _CHANGED,
                {
                    "changed_id": session_id,
                    "new_name": spec.name,
                    "new_priority": spec.priority,
                    "holds": spec.hold,
                    "changeable": list(_CHANGEABLE),
                    "members": json_text(changed),
                },
            )
        )
    except psycopg.errors.UniqueViolation as error:
        raise NameTaken("session", spec.name) from error


_PULLED = Construct(update(_session).where(_IS_ASKED).values(pull_time=func.now()))
_of = objects("r", "rows", id=Uuid(), conditions=JSONB())
_CONDITIONS = Construct(
    update(_session)
    .where(_session.c.id == _of.c.id)
    .values(conditions=_of.c.conditions, version=_session.c.version + literal_column("1"))
)


def pull_statement(session_ids: Collection[uuid.UUID]) -> Statement:
    """Records that image pulls of these sessions progressed."""
    return Statement(_PULLED, {"ids": list(session_ids)})


async def set_conditions(
    tx: AsyncSession, session_ids: Iterable[uuid.UUID], conditions: Iterable[Sequence[object]]
) -> None:
    """Replaces the conditions of sessions; each is a Condition, or as it is stored."""
    await run(tx, condition_statement(dict(zip(session_ids, conditions, strict=True))))


def condition_statement(conditions: Mapping[uuid.UUID, Sequence[object]]) -> Statement:
    """Returns the statement that replaces the conditions of sessions; each is a Condition, or as it is stored."""
    return Statement(_CONDITIONS, {"rows": recordset({"id": id_, "conditions": of} for id_, of in conditions.items())})
