"""The agent beside every node: starts kernels and joins them with private networks."""

import retinue.rpc.fork_support  # noqa: F401  # before gRPC is imported
