"""Requests name their earliest start time as the contract does."""

from __future__ import annotations

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    _rename("session", "starts_at", "earliest_start_time")
    _rename("template_version", "startsAt", "earliestStartTime")


def downgrade() -> None:
    """Goes back to the revision before."""
    _rename("session", "earliest_start_time", "starts_at")
    _rename("template_version", "earliestStartTime", "startsAt")


def _rename(table: str, old: str, new: str) -> None:
    op.execute(
        f"UPDATE {table} SET spec = (spec - '{old}') || jsonb_build_object('{new}', spec->'{old}') "  # noqa: S608
        f"WHERE jsonb_typeof(spec) = 'object' AND spec ? '{old}'"
    )
