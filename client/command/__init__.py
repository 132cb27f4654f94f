"""The command line `retinue`: `main` is the program, one module per group of commands."""

import os

# gRPC reads it when it is loaded, and prints to the terminal of commands, for instance when the server ends an idle
# connection. What is of use in that, a call that fails says again.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__all__ = ["main"]


def main() -> None:
    """Runs the command line and ends the process: the entry point."""
    # Before the rest is loaded: an interrupt may come at any moment.
    from retinue.client.command.shell.interrupts import end_at_interrupts  # noqa: PLC0415

    end_at_interrupts()
    from retinue.client.command.application import main as run  # noqa: PLC0415

    run()
