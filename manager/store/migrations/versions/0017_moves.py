"""A session's move writes less: kernels and attempts have room beside them for the next state,
and nothing is looked up for what is known.
"""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# Half a page is left free, so that all rows of a page can be written again in it, without new entries in the indexes.
_ROOMY = ("kernel", "attempt")


def upgrade() -> None:
    """Goes to this revision."""
    for table in _ROOMY:
        op.execute(f"ALTER TABLE {table} SET (fillfactor = 50)")
    # The identity is unique by itself.
    op.drop_constraint("session_sequence_key", "session")
    # Attempts are made from the rows of their kernels: a look for each of them is for nothing.
    # They still go with those.
    op.drop_constraint("attempt_kernel_id_fkey", "attempt")
    op.execute(
        "CREATE FUNCTION forget_attempts() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "BEGIN DELETE FROM attempt USING o WHERE attempt.kernel_id = o.id; RETURN NULL; END $$"
    )
    op.execute(
        "CREATE TRIGGER forget_attempts AFTER DELETE ON kernel REFERENCING OLD TABLE AS o "
        "FOR EACH STATEMENT EXECUTE FUNCTION forget_attempts()"
    )


def downgrade() -> None:
    """Goes back to the revision before."""
    op.execute("DROP TRIGGER forget_attempts ON kernel")
    op.execute("DROP FUNCTION forget_attempts()")
    op.create_foreign_key("attempt_kernel_id_fkey", "attempt", "kernel", ["kernel_id"], ["id"], ondelete="CASCADE")
    op.create_unique_constraint("session_sequence_key", "session", ["sequence"])
    for table in _ROOMY:
        op.execute(f"ALTER TABLE {table} RESET (fillfactor)")
