"""Keeps gRPC from handling forks in the process that imports this, which must be before gRPC is imported.

Its handlers stop threads of a running server around every fork; programs that a daemon starts need none of them.
"""

import os

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
