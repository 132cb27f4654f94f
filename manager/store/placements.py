"""The one commit of a scheduling pass: a fixed number of set-based statements, however much was placed,
in three round trips.

`lock` comes before `write`; the statements of both are in the order of locks.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.scheduling.records import Holding, Nomination, QuotaRecord, RunningSession
from retinue.manager.session.core.ipam import VXLAN_PORT
from retinue.manager.session.core.spec import DEFAULT_GRACE_SECONDS
from retinue.manager.store import journal, leadership, shares
from retinue.manager.store.changes import UNMARKED
from retinue.manager.store.database import Query, Statement, Transaction
from retinue.manager.store.recordset import recordset
from retinue.manager.store.shares import Difference
from retinue.manager.store.spec_fields import held, json_number


@dataclass(frozen=True, slots=True)
class Sessions:
    """Placed sessions of a group, in order of decision: `sizes` are numbers of kernels, `networks` is '', BRIDGE or
    VXLAN, `tries` the tries that this one makes. `rotation` is the agent that a rotation chose last,
    or None if that is written already.
    """

    group: str
    ids: Sequence[uuid.UUID]
    owners: Sequence[str]
    sizes: Sequence[int]
    networks: Sequence[str]
    tries: Sequence[int]
    rotation: str | None


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
        *([_keeping_rotation(placed.group, placed.rotation)] if placed.rotation is not None else []),
        groups,
        held,
    )
    writing = shares.writing(answers.of(placing), answers.of(groups), answers.of(held))
    await tx.pipeline(writing, _recording(placed), commit=True)
    journal.appended_unseen(tx)


def _locking_quotas(subjects: Collection[tuple[str, str]]) -> Query[list[QuotaRecord]]:
    return Query(
        """
            SELECT q.kind, q.name, q.slots, q.max_sessions FROM quota q
            JOIN unnest(CAST(:kinds AS text[]), CAST(:names AS text[])) AS r(kind, name) USING (kind, name)
            ORDER BY q.kind, q.name FOR SHARE OF q
        """,
        {"kinds": [kind for kind, _ in subjects], "names": [name for _, name in subjects]},
        read=lambda rows: [QuotaRecord(**row) for row in rows],
    )


def _locking_waiting(ids: Collection[uuid.UUID]) -> Query[set[uuid.UUID]]:
    """Locks those of the sessions that wait, and are not held; finds the others."""
    return Query(
        f"""
            WITH locked AS (SELECT id FROM session WHERE id = ANY(:ids) AND state = 'PENDING' AND NOT {held("spec")} ORDER BY id FOR UPDATE)
            SELECT r.id FROM unnest(CAST(:ids AS uuid[])) AS r(id) WHERE NOT EXISTS (SELECT FROM locked WHERE locked.id = r.id)
        """,  # noqa: S608  # our own words
        {"ids": list(ids)},
        read=lambda rows: {row["id"] for row in rows},
    )


def _locking_agents(agents: Sequence[str]) -> Statement:
    return Statement(
        "SELECT FROM agent WHERE id = ANY(:agents) ORDER BY id FOR NO KEY UPDATE", {"agents": sorted(set(agents))}
    )


def _missing(
    agents: Sequence[str], slots: Sequence[str], amounts: Sequence[int]
) -> Query[dict[tuple[str, str], int | None]]:
    """Finds what there is not enough of on agents that are locked. Apart from their locking: a statement that waited
    for a lock would not see the claims for which it had to wait.
    """
    return Query(
        """
            WITH held AS (
                SELECT id, capacity, state = 'ALIVE' AND NOT drained AND NOT revoked AND NOT blocked AS takes FROM agent WHERE id = ANY(:agents)
            ), wanted AS (
                SELECT r.agent_id, r.slot, r.amount,
                    CASE WHEN held.takes THEN coalesce((held.capacity->>r.slot)::bigint, 0) - (
                        SELECT coalesce(sum(c.amount), 0) FROM claim c
                        WHERE c.release_time IS NULL AND c.agent_id = r.agent_id AND c.slot = r.slot
                    ) END AS free
                FROM unnest(CAST(:agents AS text[]), CAST(:slots AS text[]), CAST(:amounts AS bigint[])) AS r(agent_id, slot, amount)
                LEFT JOIN held ON held.id = r.agent_id
            )
            SELECT agent_id, slot, free::bigint FROM wanted WHERE (amount <= free) IS NOT TRUE
        """,
        {"agents": list(agents), "slots": list(slots), "amounts": list(amounts)},
        read=lambda rows: {(row["agent_id"], row["slot"]): row["free"] for row in rows},
    )


def _placing(term: int, placed: Sessions, kernels: Kernels) -> Query[list[Difference]]:
    """Writes kernels, attempts and claims; finds what owners hold more."""
    return Query(
        """
            WITH input AS (
                SELECT * FROM unnest(CAST(:sessions AS uuid[]), CAST(:ranks AS int[]), CAST(:agents AS text[]), CAST(:addresses AS text[]),
                    CAST(:owners AS text[])) AS r(session_id, local_rank, agent_id, address, owner)
            ), placed AS (
                UPDATE kernel SET state = 'SCHEDULED', agent_id = input.agent_id, epoch = greatest(kernel.epoch, last_epoch) + 1,
                    address = input.address, exit_code = NULL, reason = ''
                FROM input CROSS JOIN cluster WHERE kernel.session_id = input.session_id AND kernel.local_rank = input.local_rank
                RETURNING kernel.id, kernel.epoch, kernel.session_id, kernel.agent_id, kernel.slots, input.owner
            ), tried AS (
                INSERT INTO attempt (kernel_id, epoch, session_id, agent_id, goal, observed, term, log_pending)
                SELECT id, epoch, session_id, agent_id, 'HELD', '', :term, FALSE FROM placed
            ), claimed AS (
                INSERT INTO claim (kernel_id, epoch, slot, agent_id, resource_group, owner, amount)
                SELECT placed.id, placed.epoch, slot.key, placed.agent_id, :group, placed.owner, slot.value::bigint
                FROM placed CROSS JOIN LATERAL jsonb_each_text(placed.slots) AS slot
                RETURNING owner, slot, amount
            )
            SELECT owner, slot, sum(amount)::bigint AS amount FROM claimed GROUP BY owner, slot
        """,
        {
            "term": term,
            "group": placed.group,
            "sessions": [placed.ids[position] for position in kernels.sessions],
            "ranks": list(kernels.ranks),
            "agents": list(kernels.agents),
            "addresses": list(kernels.addresses),
            "owners": [placed.owners[position] for position in kernels.sessions],
        },
        read=lambda rows: [Difference(placed.group, **row) for row in rows],
    )


def _making_networks(networks: Sequence[Network]) -> Statement:
    return Statement(
        """
            WITH made AS (
                INSERT INTO network (session_id, vni, subnet, mtu, vxlan_port)
                SELECT * FROM unnest(CAST(:sessions AS uuid[]), CAST(:vnis AS int[]), CAST(:subnets AS cidr[]), CAST(:mtus AS int[]),
                    CAST(:ports AS int[]))
                RETURNING id, session_id
            )
            INSERT INTO network_site (network_id, agent_id, session_id)
            SELECT made.id, site.agent_id, made.session_id
            FROM unnest(CAST(:site_sessions AS uuid[]), CAST(:site_agents AS text[])) AS site(session_id, agent_id) JOIN made USING (session_id)
        """,
        {
            "sessions": [network.session_id for network in networks],
            "vnis": [network.vni for network in networks],
            "subnets": [network.subnet for network in networks],
            "mtus": [network.mtu for network in networks],
            "ports": [network.vxlan_port for network in networks],
            "site_sessions": [network.session_id for network in networks for _ in network.agents],
            "site_agents": [agent for network in networks for agent in network.agents],
        },
    )


def _moving(placed: Sessions) -> Statement:
    return Statement(
        """
            UPDATE session SET state = 'SCHEDULED', state_time = now(), schedule_time = now(), evaluate_time = now(), reason = '', message = '',
                explanation = '{}', network = r.network, nomination = '{}', tries = r.tries, force = FALSE, version = version + 1
            FROM unnest(CAST(:ids AS uuid[]), CAST(:networks AS text[]), CAST(:tries AS int[])) AS r(id, network, tries) WHERE session.id = r.id
        """,
        {"ids": list(placed.ids), "networks": list(placed.networks), "tries": list(placed.tries)},
    )


def _keeping_rotation(group: str, rotation: str) -> Statement:
    return Statement(
        "UPDATE resource_group SET rotation = :rotation WHERE name = :group AND rotation <> :rotation",
        {"group": group, "rotation": rotation},
    )


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
        text(f"""
            SELECT s.id, s.priority, extract(epoch FROM s.schedule_time)::float8 AS placed,
                s.state <> 'TERMINATING' AND s.spec->'preemptible' IS NOT DISTINCT FROM 'true'
                    AND s.schedule_time <= now() - make_interval(secs => :min_runtime)
                    AS preemptible,
                CASE WHEN s.state = 'TERMINATING' THEN coalesce({json_number("s.spec->'grace_seconds'")}, {DEFAULT_GRACE_SECONDS})
                    ELSE coalesce(extract(epoch FROM s.expire_time - now()), {json_number("s.spec->'time_limit_seconds'")}) END::float8 AS ends,
                jsonb_agg(jsonb_build_object('agent', h.agent_id, 'slots', h.slots)) AS holdings, s.type = 'BATCH' AS finishing
            FROM session s JOIN LATERAL (
                SELECT a.agent_id, (SELECT jsonb_object_agg(c.slot, c.amount) FROM claim c
                    WHERE c.kernel_id = a.kernel_id AND c.epoch = a.epoch AND c.release_time IS NULL) AS slots
                FROM attempt a WHERE a.session_id = s.id AND a.end_time IS NULL
            ) h ON h.slots IS NOT NULL
            WHERE s.resource_group = :group AND (s.state IN ('SCHEDULED', 'PREPARING', 'RUNNING')
                AND (s.spec->>'time_limit_seconds' IS NOT NULL OR s.spec->'preemptible' = 'true' OR (:finishing AND s.type = 'BATCH'))
                OR (:finishing AND s.state = 'TERMINATING'))
            GROUP BY s.id ORDER BY s.id
        """),  # noqa: S608  # our own words
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


async def nominate(tx: AsyncSession, nominations: Iterable[Nomination]) -> None:
    """Holds capacity for sessions that still wait."""
    await tx.execute(
        text(f"""
            UPDATE session SET nomination = jsonb_build_object('agents', r.agents, 'until', extract(epoch FROM now()) + r.seconds)
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(id uuid, agents jsonb, seconds float8)
            WHERE session.id = r.id AND session.state = 'PENDING' AND NOT {held("session.spec")}
        """),  # noqa: S608  # our own words
        {
            "rows": recordset(
                {"id": each.session_id, "agents": each.agents, "seconds": each.seconds} for each in nominations
            )
        },
    )


async def write_reasons(
    tx: AsyncSession,
    reasons: Sequence[tuple[str, str, str]],
    ids: Sequence[uuid.UUID],
    which: Sequence[int],
    tries: Sequence[int],
) -> list[ChangedReason]:
    """Writes why sessions wait: `reasons` are reason, message and explanation (JSON), `which` says whose is which.
    Sessions that do not wait any more are left alone. Returns those whose reason changed.
    """
    changed = await tx.execute(
        text("""
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
        """),
        {
            "reasons": [reason for reason, _, _ in reasons],
            "messages": [message for _, message, _ in reasons],
            "explanations": [explanation for _, _, explanation in reasons],
            "ids": list(ids),
            "which": list(which),
            "tries": list(tries),
        },
    )
    return [ChangedReason(*row) for row in changed]
