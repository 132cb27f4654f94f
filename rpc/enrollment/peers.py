"""The two ends of a connection between a manager and a node: what a node shows, and by what it knows a manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from retinue.rpc.enrollment.identity import Identity

MANAGER_IDENTITY = b"spiffe://retinue/manager"
"""Name, of kind URI, in the certificate of a manager."""


def is_manager(identities: Mapping[str, Sequence[bytes]]) -> bool:
    """Returns whether the peer's certificate is that of a manager, by the names that gRPC found in it."""
    return MANAGER_IDENTITY in identities.get("x509_subject_alternative_name", ())


def server_credentials(identity: Callable[[], Identity]) -> grpc.ServerCredentials:
    """Returns credentials that show the current identity and let in only peers with a certificate of the same CA.

    `identity` gives the current one; a renewed certificate counts from the next handshake.
    """

    def configuration(current: Identity) -> grpc.ServerCertificateConfiguration:
        pair = (current.private_key.encode(), current.certificate.encode())
        return grpc.ssl_server_certificate_configuration([pair], current.ca_certificate.encode())

    shown = identity()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        # Called by gRPC before every handshake, in a thread of its own; None says that nothing changed.
        nonlocal shown
        if (current := identity()) == shown:
            return None
        shown = current
        return configuration(current)

    # The stubs do not know that None is an answer: https://grpc.github.io/grpc/python/grpc.html says so.
    fetcher: Any = fetch
    return grpc.dynamic_ssl_server_credentials(configuration(shown), fetcher, require_client_authentication=True)
