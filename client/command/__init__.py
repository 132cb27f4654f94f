"""The command line `retinue`: `main` is the program, one module per group of commands."""

import os

# gRPC reads it when it is loaded, and prints to the terminal of commands, for instance when the server ends an idle
# connection. What is of use in that, a call that fails says again.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from retinue.client.command.application import main  # after what gRPC reads

__all__ = ["main"]
