"""The journal, its live end, and calls that take effect once."""
