"""Resource groups say which isolations kernels may have, and agents what there is to say of their runtimes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

# Rows of `resource_group` as far as the scheduler reads them.
_BEFORE = "(n.session_strategy, n.agent_strategy, n.options, n.owner_weights)"
_AFTER = "(n.session_strategy, n.agent_strategy, n.options, n.owner_weights, n.isolations)"


def upgrade() -> None:
    """Goes to this revision."""
    op.add_column("resource_group", _list("isolations"))
    default = sa.Column("default_isolation", sa.String(), server_default=sa.text("''"), nullable=False)
    op.add_column("resource_group", default)
    op.add_column("agent", _list("runtimes"))
    _mark(_AFTER)


def downgrade() -> None:
    """Goes back to the revision before."""
    _mark(_BEFORE)
    op.drop_column("agent", "runtimes")
    op.drop_column("resource_group", "default_isolation")
    op.drop_column("resource_group", "isolations")


def _list(name: str) -> sa.Column[object]:
    return sa.Column(name, postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False)


# ruff: noqa: S608  # our own words
def _mark(group: str) -> None:
    op.execute(
        f"""
        CREATE OR REPLACE FUNCTION mark_resource_group_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF TG_OP = 'UPDATE' THEN
                INSERT INTO scheduling_change (kind, key)
                SELECT 'group', n.name FROM n JOIN o USING (name) WHERE {group} IS DISTINCT FROM {group.replace("n.", "o.")};
            ELSIF TG_OP = 'INSERT' THEN
                INSERT INTO scheduling_change (kind, key) SELECT 'group', name FROM n;
            ELSE
                INSERT INTO scheduling_change (kind, key) SELECT 'group', name FROM o;
            END IF;
            RETURN NULL;
        END $$
        """
    )
