"""What the leader's scheduler has not taken in yet: marks of changes, set by triggers in the commit of the change."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

# Sessions that hold something, and rows of `agent` and `resource_group` as far as the scheduler reads them.
# ruff: noqa: S608  # our own words
_PLACED = "state NOT IN ('PENDING', 'TERMINATED', 'CANCELLED')"
_AGENT = "(n.resource_group, n.state, n.drained, n.revoked, n.architecture, n.capacity, n.backends, n.underlay_address, n.underlay_mtu)"
_GROUP = "(n.session_strategy, n.agent_strategy, n.options, n.owner_weights)"

_FUNCTIONS = {
    "session": f"""
        IF TG_OP = 'INSERT' THEN
            INSERT INTO scheduling_change (kind, key, resource_group, owner, project, amount)
            SELECT 'session', id::text, NULL, NULL, NULL, NULL FROM n WHERE state = 'PENDING'
            UNION ALL
            SELECT 'sessions', NULL, resource_group, owner, project, count(*) FROM n WHERE {_PLACED} GROUP BY resource_group, owner, project;
        ELSIF TG_OP = 'UPDATE' THEN
            INSERT INTO scheduling_change (kind, key, resource_group, owner, project, amount)
            SELECT 'session', n.id::text, NULL, NULL, NULL, NULL FROM n JOIN o USING (id) WHERE n.state = 'PENDING' OR o.state = 'PENDING'
            UNION ALL
            SELECT 'sessions', NULL, resource_group, owner, project, sum(number) FROM (
                SELECT resource_group, owner, project, 1 AS number FROM n WHERE {_PLACED}
                UNION ALL SELECT resource_group, owner, project, -1 FROM o WHERE {_PLACED}
            ) AS both_ways GROUP BY resource_group, owner, project HAVING sum(number) <> 0;
        ELSE
            INSERT INTO scheduling_change (kind, key, resource_group, owner, project, amount)
            SELECT 'session', id::text, NULL, NULL, NULL, NULL FROM o WHERE state = 'PENDING'
            UNION ALL
            SELECT 'sessions', NULL, resource_group, owner, project, -count(*) FROM o WHERE {_PLACED} GROUP BY resource_group, owner, project;
        END IF;
    """,
    "attempt": """
        IF TG_OP = 'INSERT' THEN
            INSERT INTO scheduling_change (kind, key, amount)
            SELECT 'kernels', agent_id, count(*) FROM n WHERE end_time IS NULL GROUP BY agent_id
            UNION ALL SELECT DISTINCT 'session', session_id::text, NULL::bigint FROM n;
        ELSIF TG_OP = 'UPDATE' THEN
            INSERT INTO scheduling_change (kind, key, amount)
            SELECT 'kernels', agent_id, sum(number) FROM (
                SELECT agent_id, 1 AS number FROM n WHERE end_time IS NULL
                UNION ALL SELECT agent_id, -1 FROM o WHERE end_time IS NULL
            ) AS both_ways GROUP BY agent_id HAVING sum(number) <> 0
            UNION ALL
            SELECT DISTINCT 'session', n.session_id::text, NULL::bigint FROM n JOIN o USING (kernel_id, epoch)
            WHERE (n.end_time IS NULL, n.log_pending) <> (o.end_time IS NULL, o.log_pending);
        ELSE
            INSERT INTO scheduling_change (kind, key, amount)
            SELECT 'kernels', agent_id, -count(*) FROM o WHERE end_time IS NULL GROUP BY agent_id
            UNION ALL SELECT DISTINCT 'session', session_id::text, NULL::bigint FROM o;
        END IF;
    """,
    "claim": """
        IF TG_OP = 'INSERT' THEN
            INSERT INTO scheduling_change (kind, key, resource_group, owner, project, slot, amount)
            SELECT 'claim', c.agent_id, c.resource_group, c.owner, coalesce(s.project, ''), c.slot, sum(c.amount)
            FROM n c LEFT JOIN kernel k ON k.id = c.kernel_id LEFT JOIN session s ON s.id = k.session_id
            WHERE c.release_time IS NULL GROUP BY 2, 3, 4, 5, 6;
        ELSIF TG_OP = 'UPDATE' THEN
            INSERT INTO scheduling_change (kind, key, resource_group, owner, project, slot, amount)
            SELECT 'claim', c.agent_id, c.resource_group, c.owner, coalesce(s.project, ''), c.slot, sum(c.amount) FROM (
                SELECT kernel_id, agent_id, resource_group, owner, slot, amount FROM n WHERE release_time IS NULL
                UNION ALL SELECT kernel_id, agent_id, resource_group, owner, slot, -amount FROM o WHERE release_time IS NULL
            ) AS c LEFT JOIN kernel k ON k.id = c.kernel_id LEFT JOIN session s ON s.id = k.session_id
            GROUP BY 2, 3, 4, 5, 6 HAVING sum(c.amount) <> 0;
        ELSE
            INSERT INTO scheduling_change (kind, key, resource_group, owner, project, slot, amount)
            SELECT 'claim', c.agent_id, c.resource_group, c.owner, coalesce(s.project, ''), c.slot, -sum(c.amount)
            FROM o c LEFT JOIN kernel k ON k.id = c.kernel_id LEFT JOIN session s ON s.id = k.session_id
            WHERE c.release_time IS NULL GROUP BY 2, 3, 4, 5, 6;
        END IF;
    """,
    "network": """
        IF TG_OP = 'INSERT' THEN
            INSERT INTO scheduling_change (kind, key, slot, amount)
            SELECT 'session', session_id::text, NULL, NULL::bigint FROM n WHERE session_id IS NOT NULL
            UNION ALL SELECT 'network taken', NULL, subnet::text, vni FROM n;
        ELSIF TG_OP = 'UPDATE' THEN
            INSERT INTO scheduling_change (kind, key)
            SELECT 'session', o.session_id::text FROM o JOIN n USING (id)
            WHERE o.session_id IS NOT NULL AND o.session_id IS DISTINCT FROM n.session_id;
        ELSE
            INSERT INTO scheduling_change (kind, key, slot, amount)
            SELECT 'session', session_id::text, NULL, NULL::bigint FROM o WHERE session_id IS NOT NULL
            UNION ALL SELECT 'network freed', NULL, subnet::text, vni FROM o;
        END IF;
    """,
    "agent": f"""
        IF TG_OP = 'UPDATE' THEN
            INSERT INTO scheduling_change (kind, key)
            SELECT 'agent', n.id FROM n JOIN o USING (id) WHERE {_AGENT} IS DISTINCT FROM {_AGENT.replace("n.", "o.")};
        ELSIF TG_OP = 'INSERT' THEN
            INSERT INTO scheduling_change (kind, key) SELECT 'agent', id FROM n;
        ELSE
            INSERT INTO scheduling_change (kind, key) SELECT 'agent', id FROM o;
        END IF;
    """,
    "resource_group": f"""
        IF TG_OP = 'UPDATE' THEN
            INSERT INTO scheduling_change (kind, key)
            SELECT 'group', n.name FROM n JOIN o USING (name) WHERE {_GROUP} IS DISTINCT FROM {_GROUP.replace("n.", "o.")};
        ELSIF TG_OP = 'INSERT' THEN
            INSERT INTO scheduling_change (kind, key) SELECT 'group', name FROM n;
        ELSE
            INSERT INTO scheduling_change (kind, key) SELECT 'group', name FROM o;
        END IF;
    """,
    "session_dependency": """
        IF TG_OP = 'DELETE' THEN
            INSERT INTO scheduling_change (kind, key) SELECT DISTINCT 'session', child_id::text FROM o;
        ELSE
            INSERT INTO scheduling_change (kind, key) SELECT DISTINCT 'session', child_id::text FROM n;
        END IF;
    """,
    "quota": """
        IF TG_OP = 'DELETE' THEN
            INSERT INTO scheduling_change (kind, key, slot) SELECT 'quota', name, kind FROM o;
        ELSE
            INSERT INTO scheduling_change (kind, key, slot) SELECT 'quota', name, kind FROM n;
        END IF;
    """,
}
_REFERENCES = {
    "INSERT": "NEW TABLE AS n",
    "UPDATE": "OLD TABLE AS o NEW TABLE AS n",
    "DELETE": "OLD TABLE AS o",
}


def upgrade() -> None:
    """Goes to this revision."""
    op.create_table(
        "scheduling_change",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("resource_group", sa.Text(), nullable=True),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("slot", sa.Text(), nullable=True),
        sa.Column("amount", sa.BigInteger(), nullable=True),
        # Not written ahead: a crash of the database ends the term, and every term begins by reading everything.
        prefixes=["UNLOGGED"],
    )
    # Everything in it is soon deleted.
    op.execute(
        "ALTER TABLE scheduling_change SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)"
    )
    for table, body in _FUNCTIONS.items():
        function = f"mark_{table}_change"
        op.execute(
            f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NULL; END $$"
        )
        for event, references in _REFERENCES.items():
            op.execute(
                f"CREATE TRIGGER mark_{event.lower()} AFTER {event} ON {table} REFERENCING {references} FOR EACH STATEMENT "
                f"WHEN (current_setting('retinue.marked', TRUE) IS DISTINCT FROM 'no') EXECUTE FUNCTION {function}()"
            )


def downgrade() -> None:
    """Goes back to the revision before."""
    for table in _FUNCTIONS:
        for event in _REFERENCES:
            op.execute(f"DROP TRIGGER mark_{event.lower()} ON {table}")
        op.execute(f"DROP FUNCTION mark_{table}_change()")
    op.drop_table("scheduling_change")
