"""Texts and frames for programs inside kernels. Pure."""
