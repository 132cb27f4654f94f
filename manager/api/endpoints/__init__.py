"""Servicers of inference endpoints."""
