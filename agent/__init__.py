"""The agent beside every node: starts kernels and joins them with private networks."""
