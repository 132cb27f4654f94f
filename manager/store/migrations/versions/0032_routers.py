"""Routers enrol like agents, with join tokens of their own kind; endpoints have tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.create_table(
        "router",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("revoked", sa.Boolean, nullable=False, server_default=sa.text("FALSE")),
        *(
            sa.Column(name, sa.String, nullable=False, server_default=sa.text("''"))
            for name in ("address", "url", "instance", "software_version")
        ),
        sa.Column("generation", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("certificate", sa.String, nullable=False, server_default=sa.text("''")),
        sa.Column("create_time", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        sa.Column("announce_time", sa.DateTime(timezone=True)),
        sa.Column("heartbeat_time", sa.DateTime(timezone=True)),
    )
    op.create_table(
        "endpoint_token",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("endpoint_id", sa.Uuid, nullable=False, index=True),
        sa.Column("label", sa.String, nullable=False),
        sa.Column("creator", sa.String, nullable=False, index=True),
        sa.Column("create_time", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        sa.Column("expire_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoke_time", sa.DateTime(timezone=True)),
    )
    op.add_column("join_token", sa.Column("kind", sa.String, nullable=False, server_default=sa.text("'AGENT'")))


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("join_token", "kind")
    op.drop_table("endpoint_token")
    op.drop_table("router")
