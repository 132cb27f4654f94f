"""The command line `retinue`: `main` is the program, one module per group of commands."""

from retinue.client.command.application import main

__all__ = ["main"]
