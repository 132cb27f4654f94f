"""The clients of `clients/` as `scripts/build-clients` has built them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from retinue.devtools.cluster import Cluster

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / ".cache" / "clients"


def needs(language: str) -> None:
    """Skips a test where the client in a language is left out, as its tools cannot be had. In CI none is."""
    listed = PROGRAMS / "left-out"
    if os.environ.get("CI") or not listed.is_file():
        return
    for line in listed.read_text().splitlines():
        if line.startswith(f"{language}:"):
            pytest.skip(line)


def environment_of(cluster: Cluster) -> dict[str, str]:
    """What a client takes the manager and its credentials from."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RETINUE_")}
    config = ROOT / "client" / "service_config.json"
    return {**kept, **cluster.settings.environment(), "RETINUE_SERVICE_CONFIG": str(config)}
