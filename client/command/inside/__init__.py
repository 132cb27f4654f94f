"""Commands that work in a running session."""
