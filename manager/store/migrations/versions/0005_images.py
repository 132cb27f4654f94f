"""What images were found to be, and how far they are fetched."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    for name in ("image_digest", "image_id"):
        op.add_column("kernel", sa.Column(name, sa.String(), server_default=sa.text("''"), nullable=False))
    for name, default in (("service_ports", "[]"), ("pull", "{}")):
        op.add_column(
            "kernel",
            sa.Column(name, postgresql.JSONB(), server_default=sa.text(f"'{default}'::jsonb"), nullable=False),
        )
    op.add_column("session", sa.Column("pull_time", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("session", "pull_time")
    for name in ("pull", "service_ports", "image_id", "image_digest"):
        op.drop_column("kernel", name)
