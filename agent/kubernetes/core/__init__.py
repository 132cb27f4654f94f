"""Pods as values: what they are made of, and what a cluster says of them."""
