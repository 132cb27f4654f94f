"""Links from the manager to its agents."""
