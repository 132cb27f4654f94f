"""Backups of the database: one file with every row, and a manifest that says what it holds."""
