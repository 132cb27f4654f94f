"""Measurements, each as a ratio to a bare equivalent or a peer in the same run."""
