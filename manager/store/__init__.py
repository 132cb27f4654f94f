"""The manager's data in PostgreSQL, and the queries that read and write it."""
