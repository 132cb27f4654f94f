"""Limits of kernels as values. Pure."""
