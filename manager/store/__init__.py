"""What the manager keeps in PostgreSQL, and how it is read and written."""
