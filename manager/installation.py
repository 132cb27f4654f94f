"""A data directory, a database and a certificate authority that belong together.

The database names its cluster and the fingerprint of the cluster's authority; the data directory says which cluster it
belongs to. A manager starts only where all three agree: a second authority would lose every agent,
and a wrong database every session.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import fcntl
import logging
import os
import uuid
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from retinue.manager.identity.authority import Authority, write_whole
from retinue.manager.identity.sealing import Sealer
from retinue.manager.store.migrations import NoDatabaseError, check, is_empty
from retinue.manager.store.postgres import cluster
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.manager.store.postgres.embedded import EmbeddedServer, make_passable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

CLUSTER_FILE, CA_KEY, CA_CERTIFICATE = "cluster", "ca.key", "ca.pem"
_MIN_SEAL_KEY_BYTES = 32
AUTHORITY_SECONDS = 60.0
"""Pause between two looks for a renewed authority."""
AUTHORITY_WARNING = dt.timedelta(days=400)
_log = logging.getLogger(__name__)


class BusyError(Exception):
    """Another manager runs on the same data directory."""


class MismatchError(Exception):
    """The data directory, the database and the certificate authority do not belong together;
    the text says what to do.
    """


def prepare_directory(directory: Path) -> None:
    """Makes the data directory; others may pass through it, as the database's user must, and not look around."""
    make_passable(directory.absolute())


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Keeps others off an embedded database: the first manager to end would stop it for both. Raises BusyError."""
    descriptor = os.open(directory / "manager.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"another manager runs on {directory}") from None
        yield
    finally:
        os.close(descriptor)


def embedded_server(directory: Path) -> EmbeddedServer:
    """The database server that belongs to a data directory."""
    return EmbeddedServer(directory / "postgres")


def read_cluster_id(directory: Path) -> str:
    """The id of the cluster that a data directory belongs to; empty when it belongs to none yet.
    Raises MismatchError on a damaged file.
    """
    path = directory / CLUSTER_FILE
    try:
        return str(uuid.UUID(path.read_text().strip()))
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except ValueError:
        raise MismatchError(
            f"{path} does not hold the id of a cluster: remove it if the data directory belongs to this database"
        ) from None


def write_cluster_id(directory: Path, cluster_id: str) -> None:
    """Says which cluster a data directory belongs to from now on."""
    if read_cluster_id(directory) != cluster_id:
        write_whole(directory / CLUSTER_FILE, f"{cluster_id}\n".encode(), 0o644)


async def refuse_second_cluster(directory: Path, url: str) -> None:
    """Raises MismatchError rather than have a cluster made in an empty database for a data
    directory that belongs to another one.

    An empty URL is the embedded database.
    """
    cluster_id = read_cluster_id(directory)
    if not cluster_id:
        return
    if url:
        if await is_empty(url):
            raise MismatchError(
                f"{directory} belongs to cluster {cluster_id}, and the database is empty: give the URL of the cluster's database, or bring it "
                "back with `retinue-manager admin restore`; a new cluster needs an empty data directory"
            )
    elif not await asyncio.to_thread(embedded_server(directory).exists):
        raise MismatchError(
            f"{directory} belongs to cluster {cluster_id} and has no embedded database: give the URL of the cluster's database "
            "(--database-url, RETINUE_MANAGER_DATABASE_URL), or bring it back with `retinue-manager admin restore`"
        )


def refuse_other_authority(directory: Path, fingerprint: str) -> None:
    """Raises MismatchError when a data directory has an authority, and not the one with the fingerprint;
    an empty one is any.
    """
    with contextlib.suppress(FileNotFoundError):
        certificates = x509.load_pem_x509_certificates((directory / CA_CERTIFICATE).read_bytes())
        own = {certificate.fingerprint(hashes.SHA256()).hex() for certificate in certificates}
        if fingerprint not in {"", *own}:
            raise MismatchError(
                f"the certificate authority in {directory} is not that of the backup: give an empty data directory"
            )


async def claim(
    database: Database, directory: Path, clock: Callable[[], dt.datetime], seal_key: bytes = b""
) -> Authority:
    """Returns the cluster's certificate authority, in a data directory that belongs to the database from then on.

    The first manager of a cluster makes the authority. A manager that has it keeps it in the database, sealed with its
    `seal_key`, if that does not open what is there; further managers take it from there,
    or find it in their data directory. Raises MismatchError.
    """
    # Managers that start together do this one after the other.
    async with database.transaction() as tx:
        found = await cluster.read(tx, lock=True)
        _compare(directory, found)
        if found.ca_fingerprint and not (directory / CA_KEY).exists():
            _take_sealed(directory, found, seal_key)
        authority = await asyncio.to_thread(Authority.load, directory, clock)
        if found.ca_certificates and authority.adopt(found.ca_certificates.encode()):
            await asyncio.to_thread(authority.save, directory)
        if found.ca_fingerprint not in {"", *authority.fingerprints}:
            raise MismatchError(
                f"the certificate authority in {directory} is not that of cluster {found.id}: copy {CA_KEY} and {CA_CERTIFICATE} from the data "
                "directory of another manager of this cluster, or from a backup"
            )
        sealed = b""
        if seal_key and not _opened(found, seal_key):
            sealed = Sealer(seal_key).seal(authority.key_pem + b"\0" + authority.certificate, found.id.bytes)
        if sealed or not (found.ca_fingerprint and found.ca_certificates):
            await cluster.write_authority(tx, authority.fingerprint, authority.certificate, sealed)
    await asyncio.to_thread(write_cluster_id, directory, str(found.id))
    return authority


async def renew_authority(database: Database, directory: Path, clock: Callable[[], dt.datetime]) -> Authority:
    """Gives the cluster's authority a new certificate, which managers take up, beside those that have not ended.

    Raises MismatchError when the data directory does not have the authority.
    """
    async with database.transaction() as tx:
        found = await cluster.read(tx, lock=True)
        if not (directory / CA_KEY).exists():
            raise MismatchError(f"{directory} has no certificate authority: give the data directory of a manager")
        authority = await asyncio.to_thread(Authority.load, directory, clock)
        if found.ca_certificates:
            authority.adopt(found.ca_certificates.encode())
        if found.ca_fingerprint not in authority.fingerprints:
            raise MismatchError(f"the certificate authority in {directory} is not that of cluster {found.id}")
        authority.adopt(authority.renewed())
        await cluster.write_authority(tx, authority.fingerprint, authority.certificate)
    await asyncio.to_thread(authority.save, directory)
    return authority


async def follow_authority(database: Database, directory: Path, authority: Authority) -> None:
    """Takes up the certificates of the authority whenever it was renewed, until cancelled; says when it has to be."""
    said: dt.datetime | None = None
    while True:
        with contextlib.suppress(StoreUnavailable):
            async with database.transaction() as tx:
                found = await cluster.read(tx)
            if found.ca_certificates.encode() != authority.certificate and authority.adopt(
                found.ca_certificates.encode()
            ):
                await asyncio.to_thread(authority.save, directory)
                _log.info("the certificate authority was renewed: it ends on %s", authority.expire_time.date())
        if authority.expire_time - authority.now < AUTHORITY_WARNING and said != authority.expire_time:
            said = authority.expire_time
            _log.warning(
                "the certificate authority ends on %s: run `retinue-manager renew-ca`", authority.expire_time.date()
            )
        await asyncio.sleep(AUTHORITY_SECONDS)


@contextlib.asynccontextmanager
async def existing_database(directory: Path, url: str) -> AsyncIterator[Database]:
    """The cluster's database, also while a manager runs: its embedded server is used and left running.
    Nothing is ever made.

    Raises NoDatabaseError, MismatchError, SchemaTooOldError, SchemaTooNewError.
    """
    async with existing_url(directory, url) as found:
        await check(found)
        database = Database(found)
        try:
            async with database.transaction() as tx:
                _compare(directory, await cluster.read(tx))
            yield database
        finally:
            await database.dispose()


@contextlib.asynccontextmanager
async def existing_url(directory: Path, url: str) -> AsyncIterator[str]:
    """The URL of the database, with its server running. Raises NoDatabaseError when a data
    directory has none of its own.
    """
    if url:
        yield url
        return
    server = embedded_server(directory)
    if not await asyncio.to_thread(server.exists):
        if read_cluster_id(directory) or (directory / CA_KEY).exists():
            raise NoDatabaseError(
                f"{directory} has no database of its own, as its manager uses one by URL: give --database-url or RETINUE_MANAGER_DATABASE_URL"
            )
        raise NoDatabaseError(
            f"{directory} is not the data directory of a manager: give the right one with --data-dir or RETINUE_MANAGER_DATA_DIR, or the URL of a "
            "database with --database-url or RETINUE_MANAGER_DATABASE_URL; `retinue-manager serve` makes a new cluster"
        )
    found = await server.start()
    try:
        yield found
    finally:
        if server.started_here:
            await server.stop()


def read_seal_key(path: Path | None) -> bytes:
    """The key that authorities are sealed with, from a file; empty without one.
    Raises ValueError on one that is too short.
    """
    if path is None:
        return b""
    key = path.read_bytes().strip()
    if len(key) < _MIN_SEAL_KEY_BYTES:
        raise ValueError(
            f"{path} must hold at least {_MIN_SEAL_KEY_BYTES} bytes, for instance of `openssl rand -hex 32`"
        )
    return key


def _compare(directory: Path, found: cluster.Cluster) -> None:
    cluster_id = read_cluster_id(directory)
    if cluster_id not in {"", str(found.id)}:
        raise MismatchError(
            f"{directory} belongs to cluster {cluster_id}, and the database to cluster {found.id}: give the data directory and the "
            "database of the same cluster"
        )


def _take_sealed(directory: Path, found: cluster.Cluster, seal_key: bytes) -> None:
    if not (found.ca_sealed and seal_key):
        remedy = (
            f"give the key that it is sealed with (--ca-seal-key-file), or copy {CA_KEY} and {CA_CERTIFICATE}"
            if found.ca_sealed
            else f"copy {CA_KEY} and {CA_CERTIFICATE}"
        )
        raise MismatchError(
            f"cluster {found.id} has a certificate authority, and {directory} does not have it: {remedy} from the data directory of another "
            "manager of this cluster, or from a backup"
        )
    content = _opened(found, seal_key)
    if not content:
        raise MismatchError("the certificate authority in the database was sealed with another key")
    key, certificate = content.split(b"\0")
    install_authority(directory, key, certificate)


def _opened(found: cluster.Cluster, seal_key: bytes) -> bytes:
    """Returns the authority in the database; empty when there is none, or it was sealed with another key."""
    try:
        return Sealer(seal_key).open(found.ca_sealed, found.id.bytes)
    except ValueError:
        return b""


def install_authority(directory: Path, key: bytes, certificate: bytes) -> None:
    """Puts an authority, both parts in PEM, into a data directory that has none."""
    write_whole(directory / CA_CERTIFICATE, certificate, 0o644)
    # Last: it is what says that there is an authority.
    write_whole(directory / CA_KEY, key, 0o600)
