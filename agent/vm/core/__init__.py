"""Frames, machines and archives of virtual machines. Pure."""
