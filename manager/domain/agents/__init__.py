"""Values that manager and agents exchange, and what an agent's silence means. Pure."""
