"""Plans the next steps on the node from the desired and the observed state. Pure."""
