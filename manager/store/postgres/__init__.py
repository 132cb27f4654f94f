"""Ways to PostgreSQL: connections, transactions, statements, rows and documents, and what a server refuses."""
