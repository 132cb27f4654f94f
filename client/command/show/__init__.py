"""Output: tables, documents, and progress on a terminal."""
