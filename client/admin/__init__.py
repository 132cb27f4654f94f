"""Accounts, the fleet, quotas, scheduling policies and templates."""
