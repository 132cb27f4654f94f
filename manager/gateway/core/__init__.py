"""Which address leads to which port, the configuration of the proxy, and its pages. Pure."""
