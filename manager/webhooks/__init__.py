"""Telling others by HTTP what happens to sessions: what is sent, where it may go, and the sending."""
