"""Requests call apps what the contract calls apps; nominations and extensions of sessions have the contract's names."""

from __future__ import annotations

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    _rename_key("services", "apps")
    op.alter_column("session", "promise", new_column_name="nomination")
    op.alter_column("session_idle", "extended_until", new_column_name="extension_end_time")


def downgrade() -> None:
    """Goes back to the revision before."""
    _rename_key("apps", "services")
    op.alter_column("session", "nomination", new_column_name="promise")
    op.alter_column("session_idle", "extension_end_time", new_column_name="extended_until")


def _rename_key(old: str, new: str) -> None:
    for table in ("session", "template_version"):
        op.execute(
            f"UPDATE {table} SET spec = (spec - '{old}') || jsonb_build_object('{new}', spec->'{old}') "  # noqa: S608
            f"WHERE jsonb_typeof(spec) = 'object' AND spec ? '{old}'"
        )
