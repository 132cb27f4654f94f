"""Commands that start, list, follow, change and end sessions."""
