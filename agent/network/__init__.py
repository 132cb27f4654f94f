"""Private networks of sessions on one node: bridge, VXLAN and veths in a network namespace per session."""
