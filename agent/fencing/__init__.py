"""Ends attempts that lost contact with every manager, so that others may be started elsewhere."""
