"""The agent beside every node: starts kernels and joins them with private networks."""

import os
from pkgutil import extend_path

# The generated stubs of the contract are another part of this package, in a checkout in another folder.
__path__ = extend_path(__path__, __name__)

# gRPC reads it when it is loaded. Its handlers around a fork stop threads of a server that runs; whatever the agent starts needs none
# of them.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
