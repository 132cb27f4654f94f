"""Enrolls a node as an agent and keeps it one: identity, certificate, announcement, managers."""
