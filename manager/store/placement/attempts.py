"""Live attempts and the networks around them: what each agent should have, and what becomes of it."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter
from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
    Date,
    DateTime,
    Integer,
    Text,
    Uuid,
    case,
    cast,
    extract,
    func,
    select,
    text,
    true,
    type_coerce,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.domain.endpoints.bounds import checked
from retinue.manager.domain.session.final_usage import FinalUsage
from retinue.manager.domain.session.images import parse_image
from retinue.manager.domain.session.probes import PublishedPort
from retinue.manager.domain.session.service_ports import ServicePortSpec
from retinue.manager.domain.session.spec_codec import DecodedSpec, decode
from retinue.manager.domain.session.states import KernelState
from retinue.manager.store.placement.shares import Difference
from retinue.manager.store.placement.usage import LONGEST_LOOK_BACK_DAYS
from retinue.manager.store.postgres.constructs import Construct, objects, table_of
from retinue.manager.store.postgres.database import Query, Statement, Transaction
from retinue.manager.store.postgres.documents import Decoder, Unreadable
from retinue.manager.store.postgres.recordset import Row, fetched, recordset
from retinue.manager.store.sessions.session_records import KERNEL_STATES
from retinue.manager.store.sessions.sessions import Visibility
from retinue.manager.store.tables import Attempt, Claim, Usage
from retinue.rpc.core.reasons import AgentConditionType

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


async def read_desired(
    tx: Transaction, agent_id: str, session_ids: Collection[uuid.UUID] | None = None
) -> tuple[list[DesiredAttemptRecord], list[NetworkMemberRecord]]:
    """Returns the attempts and the members of networks that an agent should know of, those of sessions with a live
    attempt anywhere, and ends the transaction. With `session_ids`, those of these sessions.
    """
    params = {"agent": agent_id, **({} if session_ids is None else {"sessions": list(session_ids)})}
    wanted = f"""
        SELECT a.kernel_id, a.epoch, a.session_id, CASE WHEN a.end_time IS NULL THEN a.goal ELSE 'STOPPED' END AS goal,
            a.observed, k.role, k.role_index, k.local_rank, k.hostname, k.slots, k.image_digest, k.image_id, s.spec,
            s.number, s.cluster_size, s.force,
            COALESCE(g.egress, 'DENY') AS egress, v.spec->'replica' AS published,
            CASE WHEN s.type = 'SYSTEM' THEN ARRAY(
                SELECT public_key FROM ssh_key WHERE user_name = s.owner ORDER BY fingerprint
            ) ELSE ARRAY[]::text[] END AS owner_keys
        FROM attempt a JOIN kernel k ON k.id = a.kernel_id JOIN session s ON s.id = a.session_id
        LEFT JOIN resource_group g ON g.name = s.resource_group
        LEFT JOIN endpoint_replica p ON p.session_id = a.kernel_id
        LEFT JOIN endpoint_revision v ON v.endpoint_id = p.endpoint_id AND v.number = p.revision
        WHERE a.agent_id = :agent AND (a.end_time IS NULL OR a.log_pending)
            {"" if session_ids is None else "AND a.session_id = ANY(:sessions)"}
        ORDER BY a.kernel_id, a.epoch
    """  # noqa: S608  # the condition is ours
    members = f"""
        SELECT n.session_id, n.vni, n.subnet::text AS subnet, n.mtu, n.vxlan_port, member.kernel_id, k.hostname,
            k.local_rank, member.agent_id, g.underlay_address, g.proves_paths
        FROM network_site here
        JOIN network n ON n.id = here.network_id AND n.session_id IS NOT NULL
        JOIN LATERAL (
            SELECT DISTINCT ON (a.kernel_id) a.kernel_id, a.agent_id FROM attempt a
            WHERE a.session_id = n.session_id ORDER BY a.kernel_id, a.epoch DESC
        ) member ON TRUE
        JOIN kernel k ON k.id = member.kernel_id
        JOIN agent g ON g.id = member.agent_id
        WHERE here.agent_id = :agent
            AND EXISTS (SELECT FROM attempt a WHERE a.session_id = n.session_id AND a.end_time IS NULL)
            {"" if session_ids is None else "AND n.session_id = ANY(:sessions)"}
        ORDER BY n.session_id, k.local_rank
    """  # noqa: S608  # the condition is ours
    attempts = Query(wanted, params, read=_desired)
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


async def read_newest(tx: AsyncSession, session_id: uuid.UUID, hostname: str) -> KernelLocationRecord | None:
    """Returns a kernel with the agent of its newest attempt; None when the session has no such kernel."""
    rows = await tx.execute(
        text("""
            SELECT k.state, k.id AS kernel_id, a.epoch, a.agent_id, g.address AS agent_address, s.reason, k.exit_code
            FROM kernel k JOIN session s ON s.id = k.session_id
            LEFT JOIN attempt a ON a.kernel_id = k.id AND a.epoch = k.epoch LEFT JOIN agent g ON g.id = a.agent_id
            WHERE k.session_id = :session AND k.hostname = :hostname
        """),
        {"session": session_id, "hostname": hostname},
    )
    found = fetched(rows)
    return kernel_location(found[0]) if found else None


async def read_memory(tx: AsyncSession, session_id: uuid.UUID, hostname: str) -> int:
    """Returns the memory of a kernel in bytes; 0 when there is no such kernel."""
    rows = await tx.execute(
        text("SELECT (slots->>'mem')::bigint FROM kernel WHERE session_id = :session AND hostname = :hostname"),
        {"session": session_id, "hostname": hostname},
    )
    return rows.scalar() or 0


async def read_main(tx: AsyncSession, session_id: uuid.UUID) -> MainKernelRecord:
    """Returns the main kernel of a session that is there."""
    rows = await tx.execute(
        text("""
            SELECT k.state, k.id AS kernel_id, a.epoch, a.agent_id, g.address AS agent_address, k.address, k.service_ports, s.spec,
                s.reason, k.exit_code
            FROM kernel k JOIN session s ON s.id = k.session_id
            LEFT JOIN attempt a ON a.kernel_id = k.id AND a.epoch = k.epoch LEFT JOIN agent g ON g.id = a.agent_id
            WHERE k.id = :session
        """),
        {"session": session_id},
    )
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
    rows = await tx.execute(
        text(f"""
            SELECT s.id AS session_id, s.name AS session_name, k.hostname, k.id AS kernel_id, a.epoch, a.agent_id,
                g.address AS agent_address
            FROM kernel k JOIN session s ON s.id = k.session_id
            JOIN attempt a ON a.kernel_id = k.id AND a.epoch = k.epoch JOIN agent g ON g.id = a.agent_id
            WHERE k.state = 'RUNNING' AND a.end_time IS NULL AND {visibility.condition("s")}
              AND (CAST(:session AS uuid) IS NULL OR s.id = :session) AND (:hostname = '' OR k.hostname = :hostname)
            ORDER BY s.create_time, s.id, k.local_rank LIMIT :limit
        """),  # noqa: S608  # the condition is ours
        {"session": session_id, "hostname": hostname, "limit": limit, **visibility.parameters()},
    )
    return [RunningKernelRecord(**row) for row in fetched(rows)]


async def read_reported(tx: AsyncSession, agent_id: str) -> list[tuple[uuid.UUID, int]]:
    """Returns the live attempts of an agent that it has reported before, as kernel and epoch."""
    rows = await tx.execute(
        text("SELECT kernel_id, epoch FROM attempt WHERE agent_id = :agent AND end_time IS NULL AND observed <> ''"),
        {"agent": agent_id},
    )
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


def finding_reported(keys: Collection[tuple[uuid.UUID, int]]) -> Query[list[ReportedAttempt]]:
    """Finds the attempts among `keys` (kernel and epoch)."""
    return Query(
        """
            SELECT a.kernel_id, a.epoch, a.session_id, a.agent_id, a.end_time IS NULL AS live, a.create_time, now() AS now FROM attempt a
            JOIN unnest(CAST(:kernels AS uuid[]), CAST(:epochs AS int[])) AS r(kernel_id, epoch) USING (kernel_id, epoch)
        """,
        {"kernels": [kernel for kernel, _ in keys], "epochs": [epoch for _, epoch in keys]},
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


_attempt, _claim, _usage = table_of(Attempt), table_of(Claim), table_of(Usage)


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


def finding_affected_agents(session_ids: Collection[uuid.UUID]) -> Query[dict[str, set[uuid.UUID]]]:
    """Returns `find_affected_agents` as a query among others."""
    return Query(
        """
            SELECT agent_id, session_id FROM attempt WHERE session_id = ANY(:ids) AND (end_time IS NULL OR log_pending)
            UNION SELECT agent_id, session_id FROM network_site WHERE session_id = ANY(:ids)
        """,
        {"ids": list(session_ids)},
        read=_affected_agents,
    )


def _affected_agents(rows: Iterable[Row]) -> dict[str, set[uuid.UUID]]:
    found: dict[str, set[uuid.UUID]] = {}
    for row in rows:
        found.setdefault(row["agent_id"], set()).add(row["session_id"])
    return found


def dropping_sites(agent_id: str, session_ids: Collection[uuid.UUID]) -> tuple[Statement, Statement]:
    """Records that an agent no longer has the networks of these sessions;
    networks that no agent has or needs any more are deleted.
    """
    sites = """
        DELETE FROM network_site site USING network n
        WHERE site.network_id = n.id AND site.agent_id = :agent AND site.session_id = ANY(:ids)
          AND NOT EXISTS (SELECT FROM attempt a WHERE n.session_id IS NOT NULL AND a.session_id = n.session_id AND a.end_time IS NULL)
    """
    return Statement(sites, {"agent": agent_id, "ids": list(session_ids)}), Statement(_DROP_NETWORKS)


_DROP_NETWORKS = "DELETE FROM network n WHERE NOT EXISTS (SELECT FROM network_site site WHERE site.network_id = n.id)"


async def read_sites(tx: AsyncSession, agent_id: str) -> set[uuid.UUID]:
    """Sessions whose network an agent has, or may have."""
    rows = await tx.execute(text("SELECT session_id FROM network_site WHERE agent_id = :agent"), {"agent": agent_id})
    return set(rows.scalars())


def unresponsive(agent: str) -> str:
    """Returns, as SQL, whether an agent is lost or does not do what it is told."""
    mark = json.dumps([{"type": AgentConditionType.NOT_FOLLOWING}])
    return f"({agent}.state = 'LOST' OR {agent}.found_conditions @> '{mark}')"


async def release_networks(tx: AsyncSession, agent_id: str) -> None:
    """Takes networks that only lost agents still have, or those that follow nothing, from their sessions, so that those
    can be placed again; number and subnet stay taken until the agent confirms, or is removed.
    """
    await tx.execute(
        text(f"""
            UPDATE network SET session_id = NULL
            WHERE session_id IS NOT NULL
              AND EXISTS (SELECT FROM network_site site WHERE site.network_id = network.id AND site.agent_id = :agent)
              AND NOT EXISTS (SELECT FROM attempt a WHERE a.session_id = network.session_id AND a.end_time IS NULL)
              AND NOT EXISTS (SELECT FROM network_site site JOIN agent g ON g.id = site.agent_id
                              WHERE site.network_id = network.id AND NOT {unresponsive("g")})
        """),  # noqa: S608  # our own words
        {"agent": agent_id},
    )
