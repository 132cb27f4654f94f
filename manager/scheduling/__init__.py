"""The scheduler's pure core: selects the next session and the agents it is placed on."""
