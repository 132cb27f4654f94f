"""The options of pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.resources.discovery import MIN_STARTS
from retinue.agent.runtime.options import RuntimeOptions

if TYPE_CHECKING:
    from pathlib import Path

NAMESPACE = "retinue-kernels"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions(RuntimeOptions):
    """The options of pods: those of all kernels, this node's name in the cluster, and the namespace of its pods.

    `config` is a file as kubectl has it; without one, the cluster is the one that the agent itself runs in. Images are
    fetched with the secrets named `pull_secrets`; `runtime` is the socket of the node's container runtime, without
    which nothing is known of images. So many `starts` are under way at a time.
    """

    node_name: str
    namespace: str = NAMESPACE
    config: Path | None = None
    priority_class: str = ""
    pull_secrets: tuple[str, ...] = ()
    runtime: Path | None = None
    starts: int = MIN_STARTS
