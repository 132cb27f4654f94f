"""Pure values and their grammar."""
