"""Holds requests in the engine while no replica is ready."""
