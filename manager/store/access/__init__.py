"""Tickets and cookies by which browsers enter ports and the console."""
