"""Tickets for ports of sessions over HTTP, and the access they were exchanged for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    for table, own in (
        ("port_ticket", [sa.Column("path", sa.String(), nullable=False)]),
        ("port_access", []),
    ):
        op.create_table(
            table,
            sa.Column("hash", sa.LargeBinary(), nullable=False),
            sa.Column("session_id", sa.Uuid(), nullable=False),
            sa.Column("port", sa.Integer(), nullable=False),
            sa.Column("user_name", sa.String(), nullable=False),
            sa.Column("token_id", sa.Uuid(), nullable=False),
            *own,
            sa.Column("expire_time", sa.DateTime(timezone=True), nullable=False),
            sa.ForeignKeyConstraint(["session_id"], ["session.id"], ondelete="CASCADE"),
            sa.ForeignKeyConstraint(["token_id"], ["token.id"], ondelete="CASCADE"),
            sa.PrimaryKeyConstraint("hash"),
        )


def downgrade() -> None:
    """Goes back to the revision before."""
    for table in ("port_access", "port_ticket"):
        op.drop_table(table)
