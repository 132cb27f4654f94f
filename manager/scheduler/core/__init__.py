"""The scheduler's cache, as tables of columns, and the snapshots that passes read. Pure."""
