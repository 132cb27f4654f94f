"""Checks the invariants between the rows of a database, after a backup was restored into it."""

from __future__ import annotations

from retinue.manager.store.backups.rows import Connection

_CHECKS = {
    "the journal has gaps": """
        SELECT (SELECT count(*) FROM journal WHERE revision > oldest) <> revision - oldest FROM journal_head
    """,
    "attempts that have ended hold claims, or live ones none that they should": """
        SELECT EXISTS (
            SELECT FROM claim c JOIN attempt a USING (kernel_id, epoch) WHERE c.release_time IS NULL AND a.end_time IS NOT NULL
        ) OR EXISTS (
            SELECT FROM attempt a JOIN kernel k ON k.id = a.kernel_id
            WHERE a.end_time IS NULL AND k.slots <> '{}' AND NOT EXISTS (
                SELECT FROM claim c WHERE c.kernel_id = a.kernel_id AND c.epoch = a.epoch AND c.release_time IS NULL
            )
        )
    """,
    "a kernel has more than one live attempt": """
        SELECT EXISTS (SELECT FROM attempt WHERE end_time IS NULL GROUP BY kernel_id HAVING count(*) > 1)
    """,
    "sessions have no kernels": """
        SELECT EXISTS (SELECT FROM session s WHERE NOT EXISTS (SELECT FROM kernel k WHERE k.session_id = s.id))
    """,
    "sessions that have ended have live attempts": """
        SELECT EXISTS (
            SELECT FROM attempt a JOIN session s ON s.id = a.session_id
            WHERE a.end_time IS NULL AND s.state IN ('TERMINATED', 'CANCELLED')
        )
    """,
}


def find_wrong(connection: Connection) -> list[str]:
    """Returns the violated invariants, in words."""
    wrong = []
    for words, query in _CHECKS.items():
        found = connection.execute(query.encode()).fetchone()
        if found is None or found[0]:
            wrong.append(words)
    return wrong
