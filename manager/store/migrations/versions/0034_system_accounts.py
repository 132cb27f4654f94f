"""Marks of what sessions hold say whether these are system sessions,
which quotas of amounts and of sessions do not count.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

_PLACED = "state NOT IN ('PENDING', 'TERMINATED', 'CANCELLED')"
_ACCOUNT = "resource_group, owner, project"


def upgrade() -> None:
    """Goes to this revision."""
    op.add_column("scheduling_change", sa.Column("system", sa.Boolean(), nullable=True))
    # Sessions that are gone hold nothing.
    _replace(f"{_ACCOUNT}, system", f"{_ACCOUNT}, type = 'SYSTEM'", ", coalesce(s.type = 'SYSTEM', FALSE)")


def downgrade() -> None:
    """Goes back to the revision before."""
    _replace(_ACCOUNT, _ACCOUNT, "")
    op.drop_column("scheduling_change", "system")


# ruff: noqa: S608  # our own words
def _replace(columns: str, of_session: str, of_claim: str) -> None:
    """Replaces functions of migration 0011: `columns` are those of an account in a mark,
    the others where a session and a claim have them.
    """
    marks = f"INSERT INTO scheduling_change (kind, key, {columns}, amount)"
    waiting = "INSERT INTO scheduling_change (kind, key) SELECT 'session',"
    claims = f"INSERT INTO scheduling_change (kind, key, {columns}, slot, amount)"
    claim = f"'claim', c.agent_id, c.resource_group, c.owner, coalesce(s.project, ''){of_claim}, c.slot"
    joined = "c LEFT JOIN kernel k ON k.id = c.kernel_id LEFT JOIN session s ON s.id = k.session_id"
    group = "2, 3, 4, 5, 6, 7" if of_claim else "2, 3, 4, 5, 6"
    functions = {
        "session": f"""
            IF TG_OP = 'INSERT' THEN
                {waiting} id::text FROM n WHERE state = 'PENDING';
                {marks}
                SELECT 'sessions', NULL, {of_session}, count(*) FROM n WHERE {_PLACED} GROUP BY {of_session};
            ELSIF TG_OP = 'UPDATE' THEN
                {waiting} n.id::text FROM n JOIN o USING (id) WHERE n.state = 'PENDING' OR o.state = 'PENDING';
                {marks}
                SELECT 'sessions', NULL, {of_session}, sum(number) FROM (
                    SELECT resource_group, owner, project, type, 1 AS number FROM n WHERE {_PLACED}
                    UNION ALL SELECT resource_group, owner, project, type, -1 FROM o WHERE {_PLACED}
                ) AS both_ways GROUP BY {of_session} HAVING sum(number) <> 0;
            ELSE
                {waiting} id::text FROM o WHERE state = 'PENDING';
                {marks}
                SELECT 'sessions', NULL, {of_session}, -count(*) FROM o WHERE {_PLACED} GROUP BY {of_session};
            END IF;
        """,
        "claim": f"""
            IF TG_OP = 'INSERT' THEN
                {claims} SELECT {claim}, sum(c.amount) FROM n {joined} WHERE c.release_time IS NULL GROUP BY {group};
            ELSIF TG_OP = 'UPDATE' THEN
                {claims} SELECT {claim}, sum(c.amount) FROM (
                    SELECT kernel_id, agent_id, resource_group, owner, slot, amount FROM n WHERE release_time IS NULL
                    UNION ALL SELECT kernel_id, agent_id, resource_group, owner, slot, -amount FROM o WHERE release_time IS NULL
                ) AS {joined} GROUP BY {group} HAVING sum(c.amount) <> 0;
            ELSE
                {claims} SELECT {claim}, -sum(c.amount) FROM o {joined} WHERE c.release_time IS NULL GROUP BY {group};
            END IF;
        """,
    }
    for table, body in functions.items():
        op.execute(
            f"CREATE OR REPLACE FUNCTION mark_{table}_change() RETURNS trigger LANGUAGE plpgsql AS $$ "
            f"BEGIN {body} RETURN NULL; END $$"
        )
