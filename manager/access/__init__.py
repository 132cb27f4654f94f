"""Visibility of sessions, access to kernels, and the access log."""
