"""What the node has."""
