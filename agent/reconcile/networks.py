"""Networks as far as the reconciler has to know them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from retinue.agent.network.namespaces import NetworkNamespace


class SessionNetwork(Protocol):
    """A session's network, as far as this module has to know it."""

    @property
    def session_id(self) -> str:
        """Returns the session it belongs to."""
        ...


Network = TypeVar("Network", bound=SessionNetwork)
Network_contra = TypeVar("Network_contra", bound=SessionNetwork, contravariant=True)


class Links(Protocol[Network_contra]):
    """The networks of sessions on this node. Every method may be repeated after a crash at any point."""

    async def ensure(self, network: Network_contra) -> int:
        """Makes the network whole; returns how many steps that took, 0 when it was."""
        ...

    async def attach(self, network: Network_contra, kernel_id: str, namespace: NetworkNamespace) -> int:
        """Attaches a kernel to the network in its network namespace; returns as `ensure` does."""
        ...

    async def remove(self, session_id: str) -> object:
        """Removes the network."""
        ...

    async def observed(self) -> set[str]:
        """Sessions of which anything of a network exists."""
        ...


class Egress(Protocol):
    """The egress links of kernels on this node. Every method may be repeated after a crash at any point."""

    async def attach(self, attempt_id: str, namespace: NetworkNamespace) -> object:
        """Creates an attempt's egress link in its network namespace."""
        ...

    async def remove(self, attempt_id: str) -> object:
        """Removes the egress link of an attempt that ended, if it is not gone with the namespace."""
        ...
