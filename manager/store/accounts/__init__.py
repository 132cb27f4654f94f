"""Users, projects, their tokens and keys, and what administrators did."""
