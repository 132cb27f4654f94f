"""Controllers that only the leader runs: deadlines, dependencies, collection of output, and their supervision."""
