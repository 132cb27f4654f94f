"""Kinds of kernels: one file each, behind one Protocol."""
