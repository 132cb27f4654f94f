"""The scheduler's pure core: which session comes next, and which agents it goes on."""
