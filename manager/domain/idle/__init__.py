"""Idle policies and what they make of a session. Pure."""
