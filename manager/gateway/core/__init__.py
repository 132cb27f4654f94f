"""Maps addresses to ports; holds the configuration of the proxy, and its pages. Pure."""
