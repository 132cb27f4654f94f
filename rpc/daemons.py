"""Starts the programs of servers, which are installed with every client: without what they need,
they say what to install.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys

# What only the extra of a program brings.
_NEEDED = {"manager": "sqlmodel", "agent": "pyroute2", "router": "xds"}


def manager() -> None:
    """Runs `retinue-manager`."""
    _run("manager")


def agent() -> None:
    """Runs `retinue-agent`."""
    _run("agent")


def router() -> None:
    """Runs `retinue-router`."""
    _run("router")


def missing_extras(*names: str) -> list[str]:
    """Returns those of the programs' extras that are not installed."""
    return [name for name in names if importlib.util.find_spec(_NEEDED[name]) is None]


def _run(name: str) -> None:
    if missing_extras(name):
        sys.stderr.write(
            f"retinue-{name}: the {name} is not installed, only the client: pip install 'retinue[{name}]'\n"
        )
        sys.exit(2)
    # All that is loaded stays: to look through it for garbage takes a fifth of a start.
    gc.disable()
    main = importlib.import_module(f"retinue.{name}.main").main
    gc.enable()
    main()
