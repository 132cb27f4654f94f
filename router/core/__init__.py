"""Pure functions from the table of endpoints to the engine's resources, and what decides about held requests."""
