"""The runtime for containers, by a Docker engine of the node."""
