"""What exists in a resource group, kept in its row by whatever changes its agents; shares hold no amounts of zero."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# ruff: noqa: S608  # our own words
_COUNTS = "state IN ('ALIVE', 'SUSPECT') AND NOT revoked"
_SUMS = """
    SELECT coalesce(jsonb_object_agg(key, total), '{}') FROM (
        SELECT key, sum(value::numeric) AS total FROM (%s) AS parts GROUP BY key HAVING sum(value::numeric) <> 0
    ) AS sums
"""
# Agents as they count after the statement, and before it.
_SIDES = {
    "INSERT": ("NEW TABLE AS n", f"SELECT resource_group, capacity, 1 AS sign FROM n WHERE {_COUNTS}"),
    "UPDATE": (
        "OLD TABLE AS o NEW TABLE AS n",
        f"""
            SELECT n.resource_group, n.capacity, 1 AS sign FROM n JOIN o USING (id)
            WHERE n.{_COUNTS.replace("NOT ", "NOT n.")} AND {{changed}}
            UNION ALL SELECT o.resource_group, o.capacity, -1 FROM o JOIN n USING (id)
            WHERE o.{_COUNTS.replace("NOT ", "NOT o.")} AND {{changed}}
        """.format(
            changed="(n.resource_group, n.state, n.revoked, n.capacity) <> (o.resource_group, o.state, o.revoked, o.capacity)"
        ),
    ),
    "DELETE": ("OLD TABLE AS o", f"SELECT resource_group, capacity, -1 AS sign FROM o WHERE {_COUNTS}"),
}


def upgrade() -> None:
    """Goes to this revision."""
    column = sa.Column("capacity", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False)
    op.add_column("resource_group", column)
    existing = f"""
        SELECT slot.key, slot.value FROM agent CROSS JOIN LATERAL jsonb_each_text(agent.capacity) AS slot
        WHERE agent.resource_group = resource_group.name AND {_COUNTS}
    """
    op.execute(f"UPDATE resource_group SET capacity = ({_SUMS % existing})")
    held = "SELECT * FROM jsonb_each_text(drf_share.held)"
    op.execute(f"UPDATE drf_share SET held = ({_SUMS % held})")
    op.execute("DELETE FROM drf_share WHERE held = '{}'")
    both = (
        "SELECT * FROM jsonb_each_text(resource_group.capacity) UNION ALL SELECT * FROM jsonb_each_text(change.amounts)"
    )
    for event, (references, sides) in _SIDES.items():
        # The row is locked first, so that the sum begins with what was committed last.
        op.execute(
            f"""
            CREATE FUNCTION count_agent_{event.lower()}() RETURNS trigger LANGUAGE plpgsql AS $$
            DECLARE change record;
            BEGIN
                FOR change IN
                    SELECT resource_group AS name, jsonb_object_agg(key, amount) AS amounts FROM (
                        SELECT resource_group, slot.key, sum(sign * slot.value::numeric) AS amount
                        FROM ({sides}) AS side CROSS JOIN LATERAL jsonb_each_text(side.capacity) AS slot
                        GROUP BY resource_group, slot.key HAVING sum(sign * slot.value::numeric) <> 0
                    ) AS differences GROUP BY resource_group ORDER BY resource_group
                LOOP
                    PERFORM FROM resource_group WHERE name = change.name FOR NO KEY UPDATE;
                    UPDATE resource_group SET capacity = ({_SUMS % both}) WHERE name = change.name;
                END LOOP;
                RETURN NULL;
            END $$
            """
        )
        op.execute(
            f"CREATE TRIGGER count_{event.lower()} AFTER {event} ON agent REFERENCING {references} FOR EACH STATEMENT "
            f"EXECUTE FUNCTION count_agent_{event.lower()}()"
        )


def downgrade() -> None:
    """Goes back to the revision before."""
    for event in _SIDES:
        op.execute(f"DROP TRIGGER count_{event.lower()} ON agent")
        op.execute(f"DROP FUNCTION count_agent_{event.lower()}()")
    op.drop_column("resource_group", "capacity")
