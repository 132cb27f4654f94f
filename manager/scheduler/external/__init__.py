"""Calls of external strategies, by `retinue.strategy.v1`."""
