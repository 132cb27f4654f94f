"""Agents report private networks that their kernels may reach: subnets of sessions are outside them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None

# Rows of `agent` as far as the scheduler reads them.
_BEFORE = "(n.resource_group, n.state, n.drained, n.revoked, n.blocked, n.architecture, n.capacity, n.backends, n.underlay_address, n.underlay_mtu)"
_AFTER = _BEFORE.replace("n.underlay_mtu", "n.underlay_mtu, n.reachable_networks")


def upgrade() -> None:
    """Goes to this revision."""
    empty = sa.text("'[]'::jsonb")
    op.add_column("agent", sa.Column("reachable_networks", postgresql.JSONB(), server_default=empty, nullable=False))
    _mark(_AFTER)


def downgrade() -> None:
    """Goes back to the revision before."""
    _mark(_BEFORE)
    op.drop_column("agent", "reachable_networks")


# ruff: noqa: S608  # our own words
def _mark(agent: str) -> None:
    op.execute(
        f"""
        CREATE OR REPLACE FUNCTION mark_agent_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF TG_OP = 'UPDATE' THEN
                INSERT INTO scheduling_change (kind, key)
                SELECT 'agent', n.id FROM n JOIN o USING (id) WHERE {agent} IS DISTINCT FROM {agent.replace("n.", "o.")};
            ELSIF TG_OP = 'INSERT' THEN
                INSERT INTO scheduling_change (kind, key) SELECT 'agent', id FROM n;
            ELSE
                INSERT INTO scheduling_change (kind, key) SELECT 'agent', id FROM o;
            END IF;
            RETURN NULL;
        END $$
        """
    )
