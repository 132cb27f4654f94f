"""What the scheduler keeps in memory, as tables of columns, and the snapshots that passes read. Pure."""
