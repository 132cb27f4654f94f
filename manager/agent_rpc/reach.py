"""Connects to an agent's port as a call does, and says in words why it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retinue.rpc import failpoints
from retinue.rpc.core.reasons import AgentConditionReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROBE_SECONDS = 5.0
"""What a connection and its handshake may take each: more than a call waits, so that a call tries no less."""
_NO_WAY = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EINVAL})
_DOMAIN = ".agent.retinue"


@dataclass(frozen=True, slots=True)
class NotReached:
    """The reason why an agent is not reached. `why` is the same in words, without addresses:
    users are not shown those of the fleet.
    """

    reason: AgentConditionReason
    why: str


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """The certificate that a manager connects to agents with, its key and the authorities that it trusts, in PEM."""

    roots: bytes
    key: bytes
    certificate: bytes


REFUSED = NotReached(
    AgentConditionReason.REFUSED, "the connection is refused: no agent listens there, or a firewall refuses it"
)
TIMED_OUT = NotReached(
    AgentConditionReason.TIMED_OUT, "the connection timed out: a firewall drops it, or the node is away"
)


@failpoints.awaited("agents", OSError)
async def _connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(host, port)


@failpoints.awaited("agents", OSError)
async def _shake_hands(writer: asyncio.StreamWriter, context: ssl.SSLContext, name: str, seconds: float) -> None:
    await writer.start_tls(context, server_hostname=name, ssl_handshake_timeout=seconds)


@failpoints.awaited("agents", OSError)
async def _read_first(reader: asyncio.StreamReader) -> bytes:
    return await reader.read(1)


async def probe(
    agent_id: str, address: str, identity: Callable[[], ClientIdentity] | None, seconds: float = PROBE_SECONDS
) -> NotReached | None:
    """Connects to an agent and closes the connection; returns why that fails, or None.

    With an `identity`, the agent's certificate counts too, and whether it takes the manager's. Never raises.
    """
    host, _, port = address.rpartition(":")
    context = None if identity is None else _context(identity())
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(2 * seconds):
            async with asyncio.timeout(seconds):
                # Without a handshake: a machine that is away is told from one that does not answer to TLS.
                reader, writer = await _connect(host.strip("[]"), int(port))
            if context is None:
                return None
            await _shake_hands(writer, context, f"{agent_id}{_DOMAIN}", 3 * seconds)
            if (other := _named(writer.get_extra_info("peercert"))) != agent_id:
                return _other(other)
            # The agent looks at the manager's certificate last, and closes without a word of HTTP/2 if it is refused.
            if not await _read_first(reader):
                return NotReached(AgentConditionReason.MANAGER_REFUSED, "it refuses the manager's certificate")
    except Exception as error:  # noqa: BLE001  # whatever it is, it is why the agent is not reached
        return explain(error, connected=writer is not None)
    finally:
        if writer is not None:
            writer.transport.abort()
    return None


def explain(error: Exception, *, connected: bool) -> NotReached:
    """Returns what a failed connection says, once it was `connected` or before. Pure."""
    if isinstance(error, ssl.SSLError):
        return _of_handshake(error)
    return _of_silence(error) if connected else _of_connecting(error)


def _of_handshake(error: ssl.SSLError) -> NotReached:
    match error:
        case ssl.SSLCertVerificationError() if "expired" in error.verify_message or "not yet" in error.verify_message:
            why = f"its certificate is not valid now ({error.verify_message}): compare the clocks of both machines"
            return NotReached(AgentConditionReason.CERTIFICATE_INVALID, why)
        case ssl.SSLCertVerificationError():
            return NotReached(
                AgentConditionReason.NOT_AN_AGENT,
                f"what answers at its address has a certificate of another authority ({error.verify_message})",
            )
        case _ if "alert" in (reason := _plain(error)):
            return NotReached(AgentConditionReason.MANAGER_REFUSED, f"it refuses the manager's certificate ({reason})")
        case _:
            return _no_agent(_plain(error) or "no TLS")


def _of_silence(error: Exception) -> NotReached:
    match error:
        case TimeoutError():
            return NotReached(
                AgentConditionReason.TIMED_OUT, "its port takes connections and does not answer: the agent hangs"
            )
        case ConnectionError():
            return _no_agent("it closes the connection")
        case _:
            return _other_error(error)


def _of_connecting(error: Exception) -> NotReached:  # noqa: PLR0911  # one for each kind
    match error:
        case TimeoutError():
            return TIMED_OUT
        case ConnectionRefusedError():
            return REFUSED
        case socket.gaierror():
            return NotReached(AgentConditionReason.NO_ROUTE, f"the name of its address is not known ({error.strerror})")
        case OSError() if error.errno in _NO_WAY:
            return NotReached(
                AgentConditionReason.NO_ROUTE, f"there is no way to its address ({os.strerror(error.errno).lower()})"
            )
        case PermissionError():
            return NotReached(AgentConditionReason.REFUSED, "a firewall of the manager's machine refuses it")
        case ValueError() | OverflowError():
            return NotReached(AgentConditionReason.NO_ROUTE, "its address is none")
        case _:
            return _other_error(error)


def _other_error(error: Exception) -> NotReached:
    return NotReached(AgentConditionReason.OTHER, f"{type(error).__name__}: {error}")


def _plain(error: ssl.SSLError) -> str:
    # Those that are made outside of OpenSSL lack the attribute.
    return (getattr(error, "reason", None) or "").replace("_", " ").lower()


def _no_agent(why: str) -> NotReached:
    return NotReached(
        AgentConditionReason.NOT_AN_AGENT, f"what answers at its address is no agent of this cluster ({why})"
    )


def _other(agent_id: str) -> NotReached:
    if not agent_id:
        return _no_agent("its certificate names no agent")
    return NotReached(
        AgentConditionReason.WRONG_AGENT, f"agent {agent_id} answers at its address: each needs an address of its own"
    )


def _named(certificate: Any) -> str:
    """Returns the agent that a verified certificate names; empty when it names none."""
    for kind, name in (certificate or {}).get("subjectAltName", ()):
        if kind == "DNS" and name.endswith(_DOMAIN):
            return str(name.removesuffix(_DOMAIN))
    return ""


# To read keys and certificates takes longer than a handshake, and a new leader probes all agents at once.
@functools.lru_cache(maxsize=2)
def _context(identity: ClientIdentity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The certificate is that of an agent, whichever: its name is looked at once it is known.
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=identity.roots.decode("ascii"))
    with _in_memory(identity.key + identity.certificate) as path:
        context.load_cert_chain(path)
    return context


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """OpenSSL reads keys from files only: the path of one that is on no disk."""
    descriptor = os.memfd_create("identity", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
