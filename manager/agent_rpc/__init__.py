"""Calls of users that go through to agents: dialing, relaying, output, usage."""
