"""Idle policies of resource groups, how they differ for users, and what is known of the use of sessions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def _json(name: str) -> sa.Column[object]:
    return sa.Column(name, postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False)


def upgrade() -> None:
    """Goes to this revision."""
    op.add_column("resource_group", _json("idle_policy"))
    op.create_table(
        "session_idle",
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("interaction_time", sa.DateTime(timezone=True), nullable=True),
        sa.Column("paused_seconds", sa.Float(), server_default=sa.text("0"), nullable=False),
        sa.Column("pause_time", sa.DateTime(timezone=True), nullable=True),
        sa.Column("extended_until", sa.DateTime(timezone=True), nullable=True),
        _json("warned"),
        _json("window"),
        _json("reading"),
        sa.ForeignKeyConstraint(["session_id"], ["session.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session_id"),
    )
    op.create_table(
        "idle_override",
        sa.Column("user_name", sa.String(), nullable=False),
        _json("policy"),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["user_name"], ["user_account.name"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user_name"),
    )
    op.create_table(
        "idle_look",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("time", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.execute("INSERT INTO idle_look (id) VALUES (1)")


def downgrade() -> None:
    """Goes back to the revision before."""
    for table in ("idle_look", "idle_override", "session_idle"):
        op.drop_table(table)
    op.drop_column("resource_group", "idle_policy")
