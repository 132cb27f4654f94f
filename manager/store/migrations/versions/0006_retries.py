"""Retries of batch sessions, and the output of each try."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.add_column("session", sa.Column("retries", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("kernel_log", sa.Column("epoch", sa.Integer(), nullable=True))
    op.execute("UPDATE kernel_log l SET epoch = k.epoch FROM kernel k WHERE k.id = l.kernel_id")
    op.alter_column("kernel_log", "epoch", nullable=False)
    op.drop_constraint("kernel_log_pkey", "kernel_log", type_="primary")
    op.create_primary_key("kernel_log_pkey", "kernel_log", ["kernel_id", "epoch"])


def downgrade() -> None:
    """Goes back to the revision before; of each kernel's output the newest is kept."""
    op.execute("DELETE FROM kernel_log l USING kernel_log m WHERE m.kernel_id = l.kernel_id AND m.epoch > l.epoch")
    op.drop_constraint("kernel_log_pkey", "kernel_log", type_="primary")
    op.create_primary_key("kernel_log_pkey", "kernel_log", ["kernel_id"])
    op.drop_column("kernel_log", "epoch")
    op.drop_column("session", "retries")
