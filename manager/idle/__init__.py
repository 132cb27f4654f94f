"""Ends sessions that are not used, by the policies of their groups."""
