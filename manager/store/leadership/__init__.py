"""Which manager leads, and for how long it may act without renewing that."""
