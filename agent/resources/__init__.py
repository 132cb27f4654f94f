"""The resources of the node."""
