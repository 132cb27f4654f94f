"""Commands on endpoints."""
