"""What to do next on the node: desired against observed. Pure."""
