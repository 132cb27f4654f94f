"""A walk of the failpoints: each fails once on a real cluster, and nothing is lost, doubled or left behind."""
