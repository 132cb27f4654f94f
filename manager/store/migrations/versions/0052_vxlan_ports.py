"""The port of VXLAN of each network."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    port = sa.Column("vxlan_port", sa.Integer(), server_default=sa.text("4789"), nullable=False)
    op.add_column("network", port)


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("network", "vxlan_port")
