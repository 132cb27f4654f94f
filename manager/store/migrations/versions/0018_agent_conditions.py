"""Agents have conditions, of which some keep placements away."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_BLOCKED = """reported_conditions @> '[{"blocks": true}]' OR found_conditions @> '[{"blocks": true}]'"""
# Rows of `agent` as far as the scheduler reads them.
_BEFORE = "(n.resource_group, n.state, n.drained, n.revoked, n.architecture, n.capacity, n.backends, n.underlay_address, n.underlay_mtu)"
_AFTER = _BEFORE.replace("n.revoked", "n.revoked, n.blocked")


def upgrade() -> None:
    """Goes to this revision."""
    for name in ("reported_conditions", "found_conditions"):
        op.add_column(
            "agent", sa.Column(name, postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False)
        )
    op.add_column("agent", sa.Column("blocked", sa.Boolean(), sa.Computed(_BLOCKED, persisted=True), nullable=False))
    _mark(_AFTER)


def downgrade() -> None:
    """Goes back to the revision before."""
    _mark(_BEFORE)
    for name in ("blocked", "found_conditions", "reported_conditions"):
        op.drop_column("agent", name)


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
