"""Etags: opaque text that changes with every change of a thing."""

from __future__ import annotations

from retinue.manager.domain.errors import EtagMismatch


def etag(version: int) -> str:
    """Returns the etag of a version."""
    return f"v{version}"


def check_etag(given: str, version: int) -> None:
    """Raises EtagMismatch when an etag is given and is not that of the version."""
    if given and given != etag(version):
        raise EtagMismatch(etag(version))
