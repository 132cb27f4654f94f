"""Brings what runs on the node to what the manager wants."""
