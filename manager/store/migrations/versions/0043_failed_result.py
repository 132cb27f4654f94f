"""The result of a failed batch session is FAILED, in sessions and in the journal."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    _rename("FAILURE", "FAILED")


def downgrade() -> None:
    """Goes back to the revision before."""
    _rename("FAILED", "FAILURE")


_RESULTS = sa.text("UPDATE session SET result = :new WHERE result = :old")
_JOURNAL = sa.text("""
    UPDATE journal SET payload = jsonb_set(payload, '{result}', to_jsonb(CAST(:new AS text)))
    WHERE kind = 'SESSION_MOVED' AND payload->>'result' = :old
""")


def _rename(old: str, new: str) -> None:
    for statement in (_RESULTS, _JOURNAL):
        op.execute(statement.bindparams(old=old, new=new))
