"""The one commit of a scheduling pass: a fixed number of set-based statements, however much was placed,
in three round trips.

`lock` comes before `write`; the statements of both are in the order of locks.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from sqlalchemy import (
    BigInteger,
    Float,
    Integer,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    false,
    func,
    insert,
    literal_column,
    not_,
    null,
    select,
    text,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import CIDR, JSONB

from retinue.manager.domain.scheduling.records import Holding, Nomination, QuotaRecord, RunningSession
from retinue.manager.domain.session.ipam import VXLAN_PORT
from retinue.manager.store.journal import journal
from retinue.manager.store.leadership import leadership
from retinue.manager.store.placement import shares
from retinue.manager.store.placement.changes import UNMARKED
from retinue.manager.store.placement.shares import Difference
from retinue.manager.store.postgres.constructs import (
    EMPTY_OBJECT,
    Construct,
    columns_of,
    entries,
    lists,
    objects,
    one_of,
    seconds,
    table_of,
    value_of,
    word,
)
from retinue.manager.store.postgres.database import Query, Statement, Transaction
from retinue.manager.store.postgres.recordset import recordset
from retinue.manager.store.tables import (
    Agent,
    Attempt,
    Claim,
    Cluster,
    Kernel,
    NetworkSite,
    Quota,
    ResourceGroup,
    Session,
)
from retinue.manager.store.tables import Network as NetworkRow

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession


@dataclass(frozen=True, slots=True)
class Sessions:
    """Placed sessions of a group, in order of decision: `sizes` are numbers of kernels, `networks` is '', BRIDGE or
    VXLAN, `tries` the tries that this one makes. `round_robin_cursor` is the agent that a rotation chose last,
    or None if that is written already.
    """

    group: str
    ids: Sequence[uuid.UUID]
    owners: Sequence[str]
    sizes: Sequence[int]
    networks: Sequence[str]
    tries: Sequence[int]
    round_robin_cursor: str | None


@dataclass(frozen=True, slots=True)
class Kernels:
    """Their kernels: `sessions` are positions in Sessions."""

    sessions: Sequence[int]
    ranks: Sequence[int]
    agents: Sequence[str]
    addresses: Sequence[str]


@dataclass(frozen=True, slots=True)
class Network:
    """A private network to be made. A VNI of 0 is none."""

    session_id: uuid.UUID
    vni: int
    subnet: str
    mtu: int
    agents: Sequence[str]
    vxlan_port: int = VXLAN_PORT


@dataclass(frozen=True, slots=True)
class Locked:
    """The state a commit may rely on to its end: `quotas` as they are now, sessions that are `lost` because they do not
    wait any more, and `short`: what is free of each (agent, slot) of which there is not enough,
    None of an agent that takes nothing new.
    """

    quotas: Sequence[QuotaRecord]
    lost: Collection[uuid.UUID]
    short: Mapping[tuple[str, str], int | None]


@dataclass(frozen=True, slots=True)
class ChangedReason:
    """A waiting session with a reason of another code than before."""

    session_id: uuid.UUID
    owner: str
    project: str
    reason: str
    message: str


async def lock(
    tx: Transaction,
    term: int,
    subjects: Collection[tuple[str, str]],
    ids: Collection[uuid.UUID],
    wanted: tuple[Sequence[str], Sequence[str], Sequence[int]],
) -> Locked:
    """Begins the commit, of this term only, and unmarked, because the scheduler knows what it writes: locks the quotas
    of subjects (kind, name), the sessions that still wait, and the agents of which amounts are `wanted`, by agent and
    slot; an agent that nothing is wanted of is named with the empty slot and 0. Raises NotLeader.
    """
    quotas, lost, short = _locking_quotas(subjects), _locking_waiting(ids), _missing(*wanted)
    answers = await tx.pipeline(leadership.checking(term), UNMARKED, quotas, lost, _locking_agents(wanted[0]), short)
    return Locked(answers.of(quotas), answers.of(lost), answers.of(short))


async def write(tx: Transaction, term: int, placed: Sessions, kernels: Kernels, networks: Sequence[Network]) -> None:
    """Writes all of it and ends the transaction."""
    placing = _placing(term, placed, kernels)
    groups, held = shares.reading([(placed.group, owner) for owner in sorted(set(placed.owners))])
    answers = await tx.pipeline(
        placing,
        *([_making_networks(networks)] if networks else []),
        _moving(placed),
        *([_keeping_cursor(placed.group, placed.round_robin_cursor)] if placed.round_robin_cursor is not None else []),
        groups,
        held,
    )
    writing = shares.writing(answers.of(placing), answers.of(groups), answers.of(held))
    await tx.pipeline(writing, _recording(placed), commit=True)
    journal.appended_unseen(tx)


_agent, _attempt, _claim = table_of(Agent), table_of(Attempt), table_of(Claim)
_cluster, _kernel, _quota = table_of(Cluster), table_of(Kernel), table_of(Quota)
_group, _network, _session = table_of(ResourceGroup), table_of(NetworkRow), table_of(Session)
_site = table_of(NetworkSite)

_named = lists("named", kind=Text(), name=Text())
_LOCKED_QUOTAS = Construct(
    select(*columns_of(Quota, QuotaRecord))
    .join_from(_quota, _named, and_(_quota.c.kind == _named.c.kind, _quota.c.name == _named.c.name))
    .order_by(_quota.c.kind, _quota.c.name)
    .with_for_update(read=True, of=_quota)
)


def _locking_quotas(subjects: Collection[tuple[str, str]]) -> Query[list[QuotaRecord]]:
    return Query(
        _LOCKED_QUOTAS,
        {"kind": [kind for kind, _ in subjects], "name": [name for _, name in subjects]},
        read=lambda rows: [QuotaRecord(**row) for row in rows],
    )


def _making_not_waiting() -> Construct:
    locked = (
        select(_session.c.id)
        .where(_session.c.id == one_of("ids", Uuid()), _session.c.state == word("PENDING"), not_(_session.c.hold))
        .order_by(_session.c.id)
        .with_for_update()
        .cte("locked")
    )
    named = lists("named", ids=Uuid())
    is_locked = select(locked.c.id).where(locked.c.id == named.c.ids)
    return Construct(select(named.c.ids.label("id")).where(~is_locked.exists()))


_NOT_WAITING = _making_not_waiting()


def _locking_waiting(ids: Collection[uuid.UUID]) -> Query[set[uuid.UUID]]:
    """Locks those of the sessions that wait, and are not held; finds the others."""
    return Query(_NOT_WAITING, {"ids": list(ids)}, read=lambda rows: {row["id"] for row in rows})


_LOCKED_AGENTS = Construct(
    select(_agent.c.id).where(_agent.c.id == one_of("agents")).order_by(_agent.c.id).with_for_update(key_share=True)
)


def _locking_agents(agents: Sequence[str]) -> Statement:
    return Statement(_LOCKED_AGENTS, {"agents": sorted(set(agents))})


def _making_missing() -> Construct:
    """What is free of the amounts that are wanted and not there; NULL of an agent that takes nothing new."""
    given = lists("given", agent_id=Text(), slot=Text(), amount=BigInteger())
    takes = and_(
        _agent.c.state == word("ALIVE"), not_(_agent.c.drained), not_(_agent.c.revoked), not_(_agent.c.blocked)
    ).label("takes")
    held = select(_agent.c.id, _agent.c.capacity, takes).where(_agent.c.id == one_of("agent_id")).cte("held")
    claimed = (
        select(func.coalesce(func.sum(_claim.c.amount), 0))
        .where(_claim.c.release_time.is_(None), _claim.c.agent_id == given.c.agent_id, _claim.c.slot == given.c.slot)
        .scalar_subquery()
    )
    existing = func.coalesce(cast(value_of(held.c.capacity, given.c.slot), BigInteger), 0)
    wanted = (
        select(*given.c, case((held.c.takes, existing - claimed)).label("free"))
        .outerjoin_from(given, held, held.c.id == given.c.agent_id)
        .cte("wanted")
    )
    return Construct(
        select(wanted.c.agent_id, wanted.c.slot, cast(wanted.c.free, BigInteger).label("free")).where(
            (wanted.c.amount <= wanted.c.free).is_not(true())
        )
    )


_MISSING = _making_missing()


def _missing(
    agents: Sequence[str], slots: Sequence[str], amounts: Sequence[int]
) -> Query[dict[tuple[str, str], int | None]]:
    """Finds what there is not enough of on agents that are locked. Apart from their locking: a statement that waited
    for a lock would not see the claims for which it had to wait.
    """
    return Query(
        _MISSING,
        {"agent_id": list(agents), "slot": list(slots), "amount": list(amounts)},
        read=lambda rows: {(row["agent_id"], row["slot"]): row["free"] for row in rows},
    )


def _making_placed() -> Construct:
    """Kernels that are placed, with their attempts and claims; what owners hold more, by slot."""
    given = lists("given", session_id=Uuid(), local_rank=Integer(), agent_id=Text(), address=Text(), owner=Text())
    input_ = select(*given.c).cte("input")
    placed = (
        update(_kernel)
        .values(
            state=word("SCHEDULED"),
            agent_id=input_.c.agent_id,
            # Also after a restore, no epoch comes twice.
            epoch=func.greatest(_kernel.c.epoch, _cluster.c.last_epoch) + 1,
            address=input_.c.address,
            exit_code=null(),
            reason=word(""),
        )
        .where(_kernel.c.session_id == input_.c.session_id, _kernel.c.local_rank == input_.c.local_rank)
        .returning(
            _kernel.c.id, _kernel.c.epoch, _kernel.c.session_id, _kernel.c.agent_id, _kernel.c.slots, input_.c.owner
        )
        .cte("placed")
    )
    attempts = (
        insert(_attempt)
        .from_select(
            ["kernel_id", "epoch", "session_id", "agent_id", "goal", "observed", "term", "log_pending"],
            select(
                placed.c.id,
                placed.c.epoch,
                placed.c.session_id,
                placed.c.agent_id,
                word("HELD"),
                word(""),
                bindparam("term", type_=BigInteger(), required=True),
                false(),
            ),
            include_defaults=False,
        )
        .cte("tried")
    )
    slot = entries("slot", placed.c.slots)
    claims = (
        insert(_claim)
        .from_select(
            ["kernel_id", "epoch", "slot", "agent_id", "resource_group", "owner", "amount"],
            select(
                placed.c.id,
                placed.c.epoch,
                slot.c.key,
                placed.c.agent_id,
                bindparam("group", type_=Text(), required=True),
                placed.c.owner,
                cast(slot.c.value, BigInteger),
            ).join_from(placed, slot, true()),
            include_defaults=False,
        )
        .returning(_claim.c.owner, _claim.c.slot, _claim.c.amount)
        .cte("claimed")
    )
    return Construct(
        select(claims.c.owner, claims.c.slot, cast(func.sum(claims.c.amount), BigInteger).label("amount"))
        .group_by(claims.c.owner, claims.c.slot)
        .add_cte(attempts)
    )


_PLACED = _making_placed()


def _placing(term: int, placed: Sessions, kernels: Kernels) -> Query[list[Difference]]:
    """Writes kernels, attempts and claims; finds what owners hold more."""
    return Query(
        _PLACED,
        {
            "term": term,
            "group": placed.group,
            "session_id": [placed.ids[position] for position in kernels.sessions],
            "local_rank": list(kernels.ranks),
            "agent_id": list(kernels.agents),
            "address": list(kernels.addresses),
            "owner": [placed.owners[position] for position in kernels.sessions],
        },
        read=lambda rows: [Difference(placed.group, **row) for row in rows],
    )


def _making_made_networks() -> Construct:
    """Networks, and the agents that are to have each."""
    rows = lists("rows", session_id=Uuid(), vni=Integer(), subnet=CIDR(), mtu=Integer(), vxlan_port=Integer())
    made = (
        insert(_network)
        .from_select([column.name for column in rows.c], select(*rows.c), include_defaults=False)
        .returning(_network.c.id, _network.c.session_id)
        .cte("made")
    )
    site = lists("site", site_session=Uuid(), site_agent=Text())
    sites = select(made.c.id, site.c.site_agent, made.c.session_id)
    return Construct(
        insert(_site).from_select(
            ["network_id", "agent_id", "session_id"],
            sites.join_from(made, site, site.c.site_session == made.c.session_id),
            include_defaults=False,
        )
    )


_MADE_NETWORKS = _making_made_networks()


def _making_networks(networks: Sequence[Network]) -> Statement:
    return Statement(
        _MADE_NETWORKS,
        {
            "session_id": [network.session_id for network in networks],
            "vni": [network.vni for network in networks],
            "subnet": [network.subnet for network in networks],
            "mtu": [network.mtu for network in networks],
            "vxlan_port": [network.vxlan_port for network in networks],
            "site_session": [network.session_id for network in networks for _ in network.agents],
            "site_agent": [agent for network in networks for agent in network.agents],
        },
    )


_placed = lists("placed", id=Uuid(), network=Text(), tries=Integer())
_MOVED = Construct(
    update(_session)
    .where(_session.c.id == _placed.c.id)
    .values(
        state=word("SCHEDULED"),
        state_time=func.now(),
        schedule_time=func.now(),
        evaluate_time=func.now(),
        reason=word(""),
        message=word(""),
        explanation=EMPTY_OBJECT,
        network=_placed.c.network,
        nomination=EMPTY_OBJECT,
        tries=_placed.c.tries,
        force=false(),
        version=_session.c.version + literal_column("1"),
    )
)


def _moving(placed: Sessions) -> Statement:
    return Statement(_MOVED, {"id": list(placed.ids), "network": list(placed.networks), "tries": list(placed.tries)})


_chosen = bindparam("chosen", type_=Text(), required=True)
_ROTATED = Construct(
    update(_group)
    .where(_group.c.name == bindparam("group", type_=Text(), required=True), _group.c.round_robin_cursor != _chosen)
    .values(round_robin_cursor=_chosen)
)


def _keeping_cursor(group: str, round_robin_cursor: str) -> Statement:
    return Statement(_ROTATED, {"group": group, "chosen": round_robin_cursor})


def _recording(placed: Sessions) -> Statement:
    """Appends to the journal: each session after its kernels, numbered by their ranks.
    How many there are is known, since the sessions are locked.
    """
    entries = [0, *accumulate(size + 1 for size in placed.sizes)]
    return Statement(
        """
            WITH counted AS (
                UPDATE journal_head SET revision = revision + :number WHERE id = 1 RETURNING revision - :number AS head
            ), input AS (
                SELECT head + r.before AS before, r.size, s.id, s.owner, s.project, s.network
                FROM counted, unnest(CAST(:ids AS uuid[]), CAST(:befores AS bigint[]), CAST(:sizes AS int[])) AS r(id, before, size)
                JOIN session s USING (id)
            )
            INSERT INTO journal (revision, create_time, session_id, owner, project, kind, payload)
            SELECT input.before + k.local_rank + 1 AS revision, clock_timestamp(), input.id, input.owner, input.project, 'KERNEL_MOVED',
                jsonb_build_object('kernel_id', k.id, 'hostname', k.hostname, 'from_state', 'PENDING', 'to_state', 'SCHEDULED',
                    'agent_id', k.agent_id, 'epoch', k.epoch, 'address', k.address)
            FROM input JOIN kernel k ON k.session_id = input.id
            UNION ALL
            SELECT before + size + 1, clock_timestamp(), id, owner, project, 'SESSION_MOVED',
                jsonb_build_object('from_state', 'PENDING', 'to_state', 'SCHEDULED', 'result', 'UNDEFINED', 'network', network)
            FROM input ORDER BY revision
        """,
        {
            "number": entries[-1],
            "ids": list(placed.ids),
            "befores": entries[:-1],
            "sizes": list(placed.sizes),
        },
    )


async def read_running(
    tx: AsyncSession, group: str, *, min_runtime: int, finishing: bool = False
) -> list[RunningSession]:
    """Returns placed sessions of a group that end by a time limit or may be preempted and, with `finishing`, those that
    end with their command or are ending: seconds until the limit (counted from now for those that are starting; None
    without one), when they were placed, and what each live attempt holds.
    Those placed for less than `min_runtime` seconds may not be preempted yet.
    """
    rows = await tx.execute(
        text("""
            SELECT s.id, s.priority, extract(epoch FROM s.schedule_time)::float8 AS placed,
                s.state <> 'TERMINATING' AND s.preemptible
                    AND s.schedule_time <= now() - make_interval(secs => :min_runtime)
                    AS preemptible,
                CASE WHEN s.state = 'TERMINATING' THEN s.grace_seconds
                    ELSE coalesce(extract(epoch FROM s.expire_time - now()), s.time_limit_seconds) END::float8 AS ends,
                jsonb_agg(jsonb_build_object('agent', h.agent_id, 'slots', h.slots)) AS holdings, s.type = 'BATCH' AS finishing
            FROM session s JOIN LATERAL (
                SELECT a.agent_id, (SELECT jsonb_object_agg(c.slot, c.amount) FROM claim c
                    WHERE c.kernel_id = a.kernel_id AND c.epoch = a.epoch AND c.release_time IS NULL) AS slots
                FROM attempt a WHERE a.session_id = s.id AND a.end_time IS NULL
            ) h ON h.slots IS NOT NULL
            WHERE s.resource_group = :group AND (s.state IN ('SCHEDULED', 'PREPARING', 'RUNNING')
                AND (s.time_limit_seconds IS NOT NULL OR s.preemptible OR (:finishing AND s.type = 'BATCH'))
                OR (:finishing AND s.state = 'TERMINATING'))
            GROUP BY s.id ORDER BY s.id
        """),  # our own words
        {"group": group, "min_runtime": min_runtime, "finishing": finishing},
    )
    return [
        RunningSession(
            id_,
            priority,
            placed,
            preemptible,
            None if ends is None else max(0.0, ends),
            [Holding(held["agent"], held["slots"]) for held in holdings],
            finishing=by_itself,
        )
        for id_, priority, placed, preemptible, ends, holdings, by_itself in rows
    ]


_nominations = objects("r", "rows", id=Uuid(), agents=JSONB(), seconds=Float())
_until = seconds(func.now()) + _nominations.c.seconds
_NOMINATED = (
    update(_session)
    .where(_session.c.id == _nominations.c.id, _session.c.state == word("PENDING"), not_(_session.c.hold))
    .values(
        nomination=func.jsonb_build_object(
            literal_column("'agents'"), _nominations.c.agents, literal_column("'until'"), _until
        )
    )
)


async def nominate(tx: AsyncSession, nominations: Iterable[Nomination]) -> None:
    """Holds capacity for sessions that still wait."""
    rows = ({"id": each.session_id, "agents": each.agents, "seconds": each.seconds} for each in nominations)
    await tx.execute(_NOMINATED, {"rows": recordset(rows)})


def writing_reasons(
    reasons: Sequence[tuple[str, str, str]],
    ids: Sequence[uuid.UUID],
    which: Sequence[int],
    tries: Sequence[int],
) -> Query[list[ChangedReason]]:
    """Writes why sessions wait: `reasons` are reason, message and explanation (JSON), `which` says whose is which.
    Sessions that do not wait any more are left alone. Finds those whose reason changed.
    """
    return Query(
        """
            WITH reasons AS (
                SELECT * FROM unnest(CAST(:reasons AS text[]), CAST(:messages AS text[]), CAST(:explanations AS text[]))
                    WITH ORDINALITY AS n(reason, message, explanation, position)
            ), input AS (
                SELECT r.id, r.tries, reasons.reason, reasons.message, reasons.explanation
                FROM unnest(CAST(:ids AS uuid[]), CAST(:which AS int[]), CAST(:tries AS int[])) AS r(id, which, tries)
                JOIN reasons ON reasons.position = r.which + 1
            ), held AS (
                SELECT id, reason AS before, owner, project FROM session WHERE id = ANY(:ids) AND state = 'PENDING' ORDER BY id FOR UPDATE
            ), written AS (
                UPDATE session SET reason = input.reason, message = input.message, explanation = CAST(input.explanation AS jsonb),
                    tries = input.tries, evaluate_time = now(),
                    version = session.version + CASE WHEN input.reason <> held.before THEN 1 ELSE 0 END
                FROM input JOIN held USING (id) WHERE session.id = input.id
            )
            SELECT id, owner, project, reason, message FROM input JOIN held USING (id) WHERE reason <> before
        """,
        {
            "reasons": [reason for reason, _, _ in reasons],
            "messages": [message for _, message, _ in reasons],
            "explanations": [explanation for _, _, explanation in reasons],
            "ids": list(ids),
            "which": list(which),
            "tries": list(tries),
        },
        read=lambda rows: [ChangedReason(*row.values()) for row in rows],
    )
