"""Enrols a node at a manager and keeps it enrolled: identity, certificate, announcement, managers."""
