"""What decides about probes: pure, times are passed in."""
