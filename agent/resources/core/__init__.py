"""Amounts, devices and usage as values. Pure."""
