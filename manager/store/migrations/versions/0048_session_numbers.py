"""The order of a session's arrival is its number, by which people and other programs refer to it."""

from __future__ import annotations

from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None

# Consecutive numbers need a lock: `nextval` of others may come between `nextval` and `setval`. It ends with the block
# that the exception rolls back, and not with the transaction; what a sequence has given stays given.
_TAKE = """
    CREATE FUNCTION take_session_numbers(amount bigint) RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE first bigint;
    BEGIN
        BEGIN
            PERFORM pg_advisory_xact_lock(hashtext('take_session_numbers'));
            first := nextval('session_number_seq');
            IF amount > 1 THEN PERFORM setval('session_number_seq', first + amount - 1); END IF;
            RAISE EXCEPTION USING ERRCODE = 'RNTKN';
        EXCEPTION WHEN SQLSTATE 'RNTKN' THEN
            RETURN first;
        END;
    END $$
"""


def upgrade() -> None:
    """Goes to this revision."""
    op.execute("ALTER TABLE session RENAME sequence TO number")
    op.execute("ALTER SEQUENCE session_sequence_seq RENAME TO session_number_seq")
    op.create_index("session_number", "session", ["number"], unique=True)
    op.execute(_TAKE)
    op.execute(
        "UPDATE journal SET payload = jsonb_set(payload, '{session,number}', to_jsonb(s.number)) "
        "FROM session s WHERE journal.kind = 'CREATED' AND s.id = journal.session_id"
    )


def downgrade() -> None:
    """Goes back to the revision before."""
    op.execute("UPDATE journal SET payload = payload #- '{session,number}' WHERE kind = 'CREATED'")
    op.execute("DROP FUNCTION take_session_numbers(bigint)")
    op.drop_index("session_number", "session")
    op.execute("ALTER SEQUENCE session_number_seq RENAME TO session_sequence_seq")
    op.execute("ALTER TABLE session RENAME number TO sequence")
