"""The options of containers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.agent.docker.core.image_removal import RemovalPolicy
from retinue.agent.docker.fetched_images import FetchedImages
from retinue.agent.docker.registry_addresses import RegistryAddresses
from retinue.agent.resources.discovery import MIN_STARTS
from retinue.agent.runtime.options import RuntimeOptions

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerOptions(RuntimeOptions):
    """The options of containers: those of all kernels, and the address of the engine.

    A kernel has a user and group of the agent's where its image names none, or root.
    `registry_config` holds credentials for registries, as Docker's `config.json` does; `registry_addresses` says where
    they may be. So many `starts` are under way at a time. Images of `fetched_images` are removed by `image_removal`.
    """

    host: str
    registry_config: Path | None = None
    registry_addresses: RegistryAddresses = field(default_factory=RegistryAddresses)
    starts: int = MIN_STARTS
    fetched_images: FetchedImages = field(default_factory=FetchedImages)
    image_removal: RemovalPolicy = field(default_factory=RemovalPolicy)
