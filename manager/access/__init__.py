"""Who may see and enter which session, and the log of who did."""
