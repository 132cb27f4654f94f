"""Services about the life of sessions: create, read, watch, end, and templates of requests."""
