"""When losses of agents of a resource group are held."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None

_DEFAULTS = {"mass_loss_percent": 50, "mass_loss_agents": 3, "mass_loss_window_seconds": 300}


def upgrade() -> None:
    """Goes to this revision."""
    for name, default in _DEFAULTS.items():
        column: sa.Column[int] = sa.Column(name, sa.Integer(), server_default=sa.text(str(default)), nullable=False)
        op.add_column("resource_group", column)


def downgrade() -> None:
    """Goes back to the revision before."""
    for name in _DEFAULTS:
        op.drop_column("resource_group", name)
