"""Identities: the certificate authority, secrets, and principals."""
