"""Programs that run in the environments of peers, not in ours."""
