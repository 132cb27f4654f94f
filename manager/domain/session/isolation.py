"""How a kernel is separated from its node and from other kernels. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Isolation(StrEnum):
    """The isolation of a kernel, as it is stored."""

    PROCESS = "PROCESS"
    CONTAINER = "CONTAINER"
    VM = "VM"


KERNELS: Mapping[Isolation, str] = {
    Isolation.PROCESS: "native processes",
    Isolation.CONTAINER: "containers",
    Isolation.VM: "virtual machines",
}
"""What kernels of an isolation are called in messages."""


def implied(image: str) -> Isolation:
    """Returns the isolation of a kernel of which nothing says another one."""
    return Isolation.CONTAINER if image else Isolation.PROCESS
