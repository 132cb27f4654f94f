"""Ends attempts that lost contact with every manager, so that others may be started on other nodes."""
