"""The agent's state directory: files that are whole or absent, damage, a full disk, one owner at a time."""
