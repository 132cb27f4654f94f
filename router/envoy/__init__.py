"""The engine's process and its admin interface."""
