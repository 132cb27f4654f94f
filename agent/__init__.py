"""The agent beside every node: starts kernels and joins them with private networks."""

import os

# gRPC reads it when it is loaded. Its handlers around a fork stop threads of a server that runs; whatever the agent starts needs none
# of them.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
