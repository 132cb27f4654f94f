"""The manager: takes sessions, queues them fairly, places them and follows every change."""

import os

# gRPC reads it when it is loaded. Its handlers around a fork stop threads of a server that runs; whatever the manager starts needs
# none of them.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
