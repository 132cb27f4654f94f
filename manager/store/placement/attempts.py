"""Live attempts and the networks around them: what each agent should have, and what becomes of it."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    Boolean,
    ColumnElement,
    Date,
    DateTime,
    FromClause,
    Integer,
    Select,
    Text,
    Uuid,
    and_,
    case,
    cast,
    delete,
    extract,
    func,
    literal,
    literal_column,
    not_,
    or_,
    select,
    true,
    type_coerce,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, distinct_on, insert

from retinue.manager.domain.endpoints.bounds import checked
from retinue.manager.domain.session.final_usage import FinalUsage
from retinue.manager.domain.session.images import parse_image
from retinue.manager.domain.session.probes import PublishedPort
from retinue.manager.domain.session.service_ports import ServicePortSpec
from retinue.manager.domain.session.spec_codec import DecodedSpec, decode
from retinue.manager.domain.session.states import KernelState
from retinue.manager.store.placement.shares import Difference
from retinue.manager.store.placement.usage import LONGEST_LOOK_BACK_DAYS
from retinue.manager.store.postgres.constructs import (
    Construct,
    lists,
    objects,
    one_of,
    parameter,
    table_of,
    value_of,
    word,
)
from retinue.manager.store.postgres.database import Query, Statement, Transaction
from retinue.manager.store.postgres.documents import Decoder, Unreadable
from retinue.manager.store.postgres.recordset import Row, fetched, recordset
from retinue.manager.store.sessions.session_records import KERNEL_STATES
from retinue.manager.store.tables import (
    Agent,
    Attempt,
    Claim,
    EndpointReplica,
    EndpointRevision,
    Kernel,
    Network,
    NetworkSite,
    ResourceGroup,
    Session,
    SshKey,
    Usage,
)
from retinue.rpc.core.reasons import AgentConditionType

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.store.sessions.visibility import Visibility

_agent, _attempt, _claim, _group = table_of(Agent), table_of(Attempt), table_of(Claim), table_of(ResourceGroup)
_kernel, _key, _network = table_of(Kernel), table_of(SshKey), table_of(Network)
_replica, _revision = table_of(EndpointReplica), table_of(EndpointRevision)
_session, _site, _usage = table_of(Session), table_of(NetworkSite), table_of(Usage)
# A kernel with its newest attempt and the agent of that.
_IS_NEWEST = and_(_attempt.c.kernel_id == _kernel.c.id, _attempt.c.epoch == _kernel.c.epoch)
_LIVE_OF_NETWORK = select(_attempt.c.kernel_id).where(
    _attempt.c.session_id == _network.c.session_id, _attempt.c.end_time.is_(None)
)

# What is stored of a replica says more, for routers.
_PUBLISHED_PORT = TypeAdapter(PublishedPort)
PUBLISHED_PORT = Decoder("the port of a replica", lambda stored: checked(_PUBLISHED_PORT.validate_python(stored)))


@dataclass(frozen=True, slots=True)
class DesiredAttemptRecord:
    """An attempt that an agent should know of, with all that goes into it;
    `goal` and `observed` may be those of another version.
    """

    kernel_id: uuid.UUID
    epoch: int
    session_id: uuid.UUID
    goal: str
    observed: str
    role: str
    role_index: int
    local_rank: int
    hostname: str
    slots: Mapping[str, int]
    image_digest: str
    image_id: str
    spec: DecodedSpec
    number: int
    cluster_size: int
    force: bool
    egress: str
    # Of the main kernel of an endpoint's replica; None of any other.
    published: PublishedPort | Unreadable | None
    # Of a system session: the public keys of its owner.
    owner_keys: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class NetworkMemberRecord:
    """A kernel in its session's network, with the agent of its newest attempt."""

    session_id: uuid.UUID
    vni: int
    subnet: str
    mtu: int
    vxlan_port: int
    kernel_id: uuid.UUID
    hostname: str
    local_rank: int
    agent_id: str
    underlay_address: str
    proves_paths: bool


def _making_desired() -> Select[*tuple[Any, ...]]:
    """The attempts that an agent should know of."""
    keys = select(_key.c.public_key).where(_key.c.user_name == _session.c.owner).order_by(_key.c.fingerprint)
    is_system = _session.c.type == word("SYSTEM")
    none = literal_column("ARRAY[]::text[]", ARRAY(Text()))
    return (
        select(
            _attempt.c.kernel_id,
            _attempt.c.epoch,
            _attempt.c.session_id,
            case((_attempt.c.end_time.is_(None), _attempt.c.goal), else_=word("STOPPED")).label("goal"),
            _attempt.c.observed,
            _kernel.c.role,
            _kernel.c.role_index,
            _kernel.c.local_rank,
            _kernel.c.hostname,
            _kernel.c.slots,
            _kernel.c.image_digest,
            _kernel.c.image_id,
            _session.c.spec,
            _session.c.number,
            _session.c.cluster_size,
            _session.c.force,
            func.coalesce(_group.c.egress, word("DENY")).label("egress"),
            _revision.c.spec["replica"].label("published"),
            case((is_system, func.array(keys.scalar_subquery())), else_=none).label("owner_keys"),
        )
        .join_from(_attempt, _kernel, _kernel.c.id == _attempt.c.kernel_id)
        .join(_session, _session.c.id == _attempt.c.session_id)
        .outerjoin(_group, _group.c.name == _session.c.resource_group)
        .outerjoin(_replica, _replica.c.session_id == _attempt.c.kernel_id)
        .outerjoin(
            _revision,
            and_(_revision.c.endpoint_id == _replica.c.endpoint_id, _revision.c.number == _replica.c.revision),
        )
        .where(
            _attempt.c.agent_id == parameter("agent", Text()),
            or_(_attempt.c.end_time.is_(None), _attempt.c.log_pending),
        )
        .order_by(_attempt.c.kernel_id, _attempt.c.epoch)
    )


def _making_members() -> Select[*tuple[Any, ...]]:
    """The members of the networks that an agent should know of, those of sessions with a live attempt anywhere."""
    member = (
        select(_attempt.c.kernel_id, _attempt.c.agent_id)
        .ext(distinct_on(_attempt.c.kernel_id))
        .where(_attempt.c.session_id == _network.c.session_id)
        .order_by(_attempt.c.kernel_id, _attempt.c.epoch.desc())
        .lateral("member")
    )
    return (
        select(
            _network.c.session_id,
            _network.c.vni,
            cast(_network.c.subnet, Text).label("subnet"),
            _network.c.mtu,
            _network.c.vxlan_port,
            member.c.kernel_id,
            _kernel.c.hostname,
            _kernel.c.local_rank,
            member.c.agent_id,
            _agent.c.underlay_address,
            _agent.c.proves_paths,
        )
        .join_from(_site, _network, and_(_network.c.id == _site.c.network_id, _network.c.session_id.is_not(None)))
        .join(member, true())
        .join(_kernel, _kernel.c.id == member.c.kernel_id)
        .join(_agent, _agent.c.id == member.c.agent_id)
        .where(_site.c.agent_id == parameter("agent", Text()), _LIVE_OF_NETWORK.exists())
        .order_by(_network.c.session_id, _kernel.c.local_rank)
    )


_ALL_DESIRED, _ALL_MEMBERS = Construct(_making_desired()), Construct(_making_members())
_SOME_DESIRED = Construct(_making_desired().where(_attempt.c.session_id == one_of("sessions", Uuid())))
_SOME_MEMBERS = Construct(_making_members().where(_network.c.session_id == one_of("sessions", Uuid())))


async def read_desired(
    tx: Transaction, agent_id: str, session_ids: Collection[uuid.UUID] | None = None
) -> tuple[list[DesiredAttemptRecord], list[NetworkMemberRecord]]:
    """Returns the attempts and the members of networks that an agent should know of, those of sessions with a live
    attempt anywhere, and ends the transaction. With `session_ids`, those of these sessions.
    """
    params = {"agent": agent_id, **({} if session_ids is None else {"sessions": list(session_ids)})}
    everything = session_ids is None
    attempts = Query(_ALL_DESIRED if everything else _SOME_DESIRED, params, read=_desired)
    members = _ALL_MEMBERS if everything else _SOME_MEMBERS
    networks = Query(members, params, read=lambda rows: [NetworkMemberRecord(**row) for row in rows])
    answers = await tx.pipeline(attempts, networks, commit=True)
    return answers.of(attempts), answers.of(networks)


def _desired(rows: Iterable[Row]) -> list[DesiredAttemptRecord]:
    specs: dict[uuid.UUID, DecodedSpec] = {}
    found = []
    for row in rows:
        if (spec := specs.get(row["session_id"])) is None:
            spec = specs[row["session_id"]] = decode(row["spec"])
        published = None if row["published"] is None else PUBLISHED_PORT.decode(row["published"])
        found.append(DesiredAttemptRecord(**{**row, "spec": spec, "published": published}))
    return found


@dataclass(frozen=True, slots=True)
class KernelLocationRecord:
    """A kernel with the agent of its newest attempt; without an attempt, all of that is None.

    `state` is None when only another version of the manager knows it. `reason` is the session's, `exit_code` the
    kernel's.
    """

    kernel_id: uuid.UUID
    state: KernelState | None
    epoch: int | None
    agent_id: str | None
    agent_address: str | None
    reason: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class MainKernelRecord:
    """The main kernel of a session: its address in the session's network (empty without one),
    the ports of its image, the session's spec.
    """

    location: KernelLocationRecord
    address: str
    service_ports: tuple[ServicePortSpec, ...]
    spec: DecodedSpec


@dataclass(frozen=True, slots=True)
class RunningKernelRecord:
    """A kernel that runs, with its newest attempt and the agent of that."""

    session_id: uuid.UUID
    session_name: str
    hostname: str
    kernel_id: uuid.UUID
    epoch: int
    agent_id: str
    agent_address: str


@dataclass(frozen=True, slots=True)
class RankedKernelRecord:
    """A kernel by its rank in its session, with its newest attempt and the agent of that; None without one.

    The agent has no address when it has never announced one, or was removed.
    """

    rank: int
    hostname: str
    kernel_id: uuid.UUID
    epoch: int | None
    agent_id: str | None
    agent_address: str | None


def kernel_location(row: Row) -> KernelLocationRecord:
    """Returns the location in a row that has kernel_id, state, epoch, agent_id and agent_address, the session's reason
    and the kernel's exit_code.
    """
    return KernelLocationRecord(
        row["kernel_id"],
        KERNEL_STATES.get(row["state"]),
        row["epoch"],
        row["agent_id"],
        row["agent_address"],
        row["reason"],
        row["exit_code"],
    )


_LOCATION = (
    select(
        _kernel.c.state,
        _kernel.c.id.label("kernel_id"),
        _attempt.c.epoch,
        _attempt.c.agent_id,
        _agent.c.address.label("agent_address"),
        _session.c.reason,
        _kernel.c.exit_code,
    )
    .join_from(_kernel, _session, _session.c.id == _kernel.c.session_id)
    .outerjoin(_attempt, _IS_NEWEST)
    .outerjoin(_agent, _agent.c.id == _attempt.c.agent_id)
)
_IS_NAMED = and_(
    _kernel.c.session_id == parameter("session", Uuid()), _kernel.c.hostname == parameter("hostname", Text())
)
_NEWEST = _LOCATION.where(_IS_NAMED)
_MEMORY = select(cast(value_of(_kernel.c.slots, literal("mem")), BigInteger)).where(_IS_NAMED)
_MAIN = _LOCATION.add_columns(_kernel.c.address, _kernel.c.service_ports, _session.c.spec).where(
    _kernel.c.id == parameter("session", Uuid())
)


async def read_newest(tx: AsyncSession, session_id: uuid.UUID, hostname: str) -> KernelLocationRecord | None:
    """Returns a kernel with the agent of its newest attempt; None when the session has no such kernel."""
    rows = await tx.execute(_NEWEST, {"session": session_id, "hostname": hostname})
    found = fetched(rows)
    return kernel_location(found[0]) if found else None


async def read_memory(tx: AsyncSession, session_id: uuid.UUID, hostname: str) -> int:
    """Returns the memory of a kernel in bytes; 0 when there is no such kernel."""
    rows = await tx.execute(_MEMORY, {"session": session_id, "hostname": hostname})
    return rows.scalar() or 0


async def read_main(tx: AsyncSession, session_id: uuid.UUID) -> MainKernelRecord:
    """Returns the main kernel of a session that is there."""
    rows = await tx.execute(_MAIN, {"session": session_id})
    (row,) = fetched(rows)
    # An image without digest and id is false, whatever ports it has.
    image = parse_image("", "", row["service_ports"])
    ports = () if image is None else image.service_ports
    return MainKernelRecord(kernel_location(row), row["address"], ports, decode(row["spec"]))


async def read_running(
    tx: AsyncSession, visibility: Visibility, session_id: uuid.UUID | None, hostname: str, limit: int
) -> list[RunningKernelRecord]:
    """Returns kernels that run and that the caller may read, of one session or of all,
    by session in order of creation.
    """
    query = (
        select(
            _session.c.id.label("session_id"),
            _session.c.name.label("session_name"),
            _kernel.c.hostname,
            _kernel.c.id.label("kernel_id"),
            _attempt.c.epoch,
            _attempt.c.agent_id,
            _agent.c.address.label("agent_address"),
        )
        .join_from(_kernel, _session, _session.c.id == _kernel.c.session_id)
        .join(_attempt, _IS_NEWEST)
        .join(_agent, _agent.c.id == _attempt.c.agent_id)
        .where(_kernel.c.state == word("RUNNING"), _attempt.c.end_time.is_(None), visibility.condition(_session))
        .order_by(_session.c.create_time, _session.c.id, _kernel.c.local_rank)
        .limit(limit)
    )
    if session_id is not None:
        query = query.where(_session.c.id == session_id)
    if hostname:
        query = query.where(_kernel.c.hostname == hostname)
    rows = await tx.execute(query, visibility.parameters())
    return [RunningKernelRecord(**row) for row in fetched(rows)]


_RANKED = (
    select(
        _kernel.c.local_rank.label("rank"),
        _kernel.c.hostname,
        _kernel.c.id.label("kernel_id"),
        _attempt.c.epoch,
        _attempt.c.agent_id,
        _agent.c.address.label("agent_address"),
    )
    .outerjoin_from(_kernel, _attempt, _IS_NEWEST)
    .outerjoin(_agent, _agent.c.id == _attempt.c.agent_id)
    .order_by(_kernel.c.local_rank)
)


async def read_ranked(
    tx: AsyncSession, session_id: uuid.UUID, hostname: str, after: int, limit: int
) -> list[RankedKernelRecord]:
    """Returns kernels of a session, or the one with this hostname, in the order of their ranks after `after`."""
    query = _RANKED.where(_kernel.c.session_id == session_id, _kernel.c.local_rank > after).limit(limit)
    if hostname:
        query = query.where(_kernel.c.hostname == hostname)
    return [RankedKernelRecord(**row) for row in fetched(await tx.execute(query))]


async def read_reported(tx: AsyncSession, agent_id: str) -> list[tuple[uuid.UUID, int]]:
    """Returns the live attempts of an agent that it has reported before, as kernel and epoch."""
    query = select(_attempt.c.kernel_id, _attempt.c.epoch).where(
        _attempt.c.agent_id == agent_id, _attempt.c.end_time.is_(None), _attempt.c.observed != word("")
    )
    rows = await tx.execute(query)
    return [(kernel_id, epoch) for kernel_id, epoch in rows]


@dataclass(frozen=True, slots=True)
class ReportedAttempt:
    """An attempt that an agent reports: the agent and session it belongs to, whether it is live, when it was made,
    and the time now.
    """

    kernel_id: uuid.UUID
    epoch: int
    session_id: uuid.UUID
    agent_id: str
    live: bool
    create_time: dt.datetime
    now: dt.datetime


_keys = lists("keys", kernel=Uuid(), number=Integer())
_REPORTED = Construct(
    select(
        _attempt.c.kernel_id,
        _attempt.c.epoch,
        _attempt.c.session_id,
        _attempt.c.agent_id,
        _attempt.c.end_time.is_(None).label("live"),
        _attempt.c.create_time,
        func.now().label("now"),
    ).join_from(_attempt, _keys, and_(_attempt.c.kernel_id == _keys.c.kernel, _attempt.c.epoch == _keys.c.number))
)


def finding_reported(keys: Collection[tuple[uuid.UUID, int]]) -> Query[list[ReportedAttempt]]:
    """Finds the attempts among `keys` (kernel and epoch)."""
    return Query(
        _REPORTED,
        {"kernel": [kernel for kernel, _ in keys], "number": [epoch for _, epoch in keys]},
        read=lambda rows: [ReportedAttempt(**row) for row in rows],
    )


@dataclass(frozen=True, slots=True)
class AttemptUpdate:
    """The state of an attempt to be written; `log_size` is that of output to be fetched,
    `observed_end_time` and `usage` are None when not known.
    """

    kernel_id: uuid.UUID
    epoch: int
    goal: str
    observed: str
    ended: bool
    log_size: int
    observed_end_time: dt.datetime | None
    usage: FinalUsage | None = None


def _making_written() -> Construct:
    """Goals, observed states and ends of attempts; what owners hold less, by group and slot."""
    given = objects(
        "given",
        "rows",
        kernel_id=Uuid(),
        epoch=Integer(),
        goal=Text(),
        observed=Text(),
        ended=Boolean(),
        log_size=BigInteger(),
        observed_end_time=DateTime(timezone=True),
        usage=JSONB(),
    )
    reported = select(*given.c).cte("input")
    written = (
        update(_attempt)
        .values(
            goal=reported.c.goal,
            observed=reported.c.observed,
            log_pending=reported.c.log_size > 0,
            log_size=reported.c.log_size,
            end_time=case((reported.c.ended, func.now())),
            observed_end_time=case((reported.c.ended, reported.c.observed_end_time)),
            usage=func.coalesce(reported.c.usage, _attempt.c.usage),
        )
        .where(
            _attempt.c.kernel_id == reported.c.kernel_id,
            _attempt.c.epoch == reported.c.epoch,
            _attempt.c.end_time.is_(None),
        )
        .cte("written")
    )
    released = (
        update(_claim)
        .values(release_time=func.now())
        .where(
            _claim.c.kernel_id == reported.c.kernel_id,
            _claim.c.epoch == reported.c.epoch,
            reported.c.ended,
            _claim.c.release_time.is_(None),
        )
        .returning(
            _claim.c.resource_group,
            _claim.c.owner,
            _claim.c.slot,
            _claim.c.amount,
            func.timezone("UTC", _claim.c.claim_time).label("begin"),
            func.timezone("UTC", _claim.c.release_time).label("until"),
        )
        .cte("released")
    )
    used = _used(released)
    by = (released.c.resource_group, released.c.owner, released.c.slot)
    less = -cast(func.sum(released.c.amount), BigInteger)
    return Construct(select(*by, less.label("amount")).group_by(*by).add_cte(written, used))


def _used(released: CTE) -> CTE:
    """Adds what claims held that are released, times how long, to the usage of the days on which they were."""
    day_long, longest = dt.timedelta(days=1), dt.timedelta(days=LONGEST_LOOK_BACK_DAYS)
    begin, until = released.c.begin, released.c.until
    first = func.date_trunc("day", func.greatest(begin, until - longest))
    days = func.generate_series(first, until, day_long).table_valued("day").render_derived(name="days")
    day = type_coerce(days.c.day, DateTime())
    held = func.least(until, day + day_long) - func.greatest(begin, day)
    by = (released.c.resource_group, released.c.owner, released.c.slot, cast(day, Date).label("day"))
    amounts = (
        select(*by, func.sum(released.c.amount * extract("epoch", held)))
        .join_from(released, days, true())
        .group_by(*by)
        # One order for all: two commits that release claims of the same owners must not wait for each other.
        .order_by(*by)
    )
    key = ["resource_group", "owner", "slot", "day"]
    adding = insert(_usage).from_select([*key, "amount_seconds"], amounts, include_defaults=False)
    total = _usage.c.amount_seconds + adding.excluded.amount_seconds
    return adding.on_conflict_do_update(index_elements=key, set_={"amount_seconds": total}).cte("used")


_WRITTEN = _making_written()


def writing(updates: Iterable[AttemptUpdate]) -> Query[list[Difference]]:
    """Writes goals, observed states and ends of attempts.

    The end of an attempt releases its claims and adds them to the usage of their days. Finds what owners hold less.
    """
    return Query(
        _WRITTEN,
        {"rows": recordset(updates)},
        read=lambda rows: [Difference(**row) for row in rows],
    )


async def find_affected_agents(tx: Transaction, session_ids: Collection[uuid.UUID]) -> dict[str, set[uuid.UUID]]:
    """Returns the agents that have, or should have, anything of these sessions, each with those sessions."""
    query = finding_affected_agents(session_ids)
    return (await tx.pipeline(query)).of(query)


_AFFECTED = Construct(
    select(_attempt.c.agent_id, _attempt.c.session_id)
    .where(_attempt.c.session_id == one_of("ids", Uuid()), or_(_attempt.c.end_time.is_(None), _attempt.c.log_pending))
    .union(select(_site.c.agent_id, _site.c.session_id).where(_site.c.session_id == one_of("ids", Uuid())))
)


def finding_affected_agents(session_ids: Collection[uuid.UUID]) -> Query[dict[str, set[uuid.UUID]]]:
    """Returns `find_affected_agents` as a query among others."""
    return Query(
        _AFFECTED,
        {"ids": list(session_ids)},
        read=_affected_agents,
    )


def _affected_agents(rows: Iterable[Row]) -> dict[str, set[uuid.UUID]]:
    found: dict[str, set[uuid.UUID]] = {}
    for row in rows:
        found.setdefault(row["agent_id"], set()).add(row["session_id"])
    return found


_DROP_SITES = Construct(
    delete(_site).where(
        _site.c.network_id == _network.c.id,
        _site.c.agent_id == parameter("agent", Text()),
        _site.c.session_id == one_of("ids", Uuid()),
        ~_LIVE_OF_NETWORK.where(_network.c.session_id.is_not(None)).correlate(_network).exists(),
    )
)
_DROP_NETWORKS = Construct(
    delete(_network).where(~select(_site.c.agent_id).where(_site.c.network_id == _network.c.id).exists())
)


def dropping_sites(agent_id: str, session_ids: Collection[uuid.UUID]) -> tuple[Statement, Statement]:
    """Records that an agent no longer has the networks of these sessions;
    networks that no agent has or needs any more are deleted.
    """
    return Statement(_DROP_SITES, {"agent": agent_id, "ids": list(session_ids)}), Statement(_DROP_NETWORKS)


async def read_sites(tx: AsyncSession, agent_id: str) -> set[uuid.UUID]:
    """Sessions whose network an agent has, or may have."""
    rows = await tx.execute(select(_site.c.session_id).where(_site.c.agent_id == agent_id))
    return set(rows.scalars())


def is_unresponsive(agent: FromClause) -> ColumnElement[bool]:
    """Returns whether an agent is lost or does not do what it is told."""
    not_following = agent.c.found_conditions.contains([{"type": AgentConditionType.NOT_FOLLOWING}])
    return or_(agent.c.state == word("LOST"), not_following)


async def release_networks(tx: AsyncSession, agent_id: str) -> None:
    """Takes networks that only lost agents still have, or those that follow nothing, from their sessions, so that those
    can be placed again; number and subnet stay taken until the agent confirms, or is removed.
    """
    sites = select(_site.c.agent_id).where(_site.c.network_id == _network.c.id)
    responsive = sites.join_from(_site, _agent, _agent.c.id == _site.c.agent_id).where(not_(is_unresponsive(_agent)))
    released = update(_network).where(
        _network.c.session_id.is_not(None),
        sites.where(_site.c.agent_id == agent_id).exists(),
        ~_LIVE_OF_NETWORK.exists(),
        ~responsive.exists(),
    )
    await tx.execute(released.values(session_id=None))
