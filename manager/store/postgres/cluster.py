"""The identity of the database: its id, and the incarnation that its history belongs to."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import select, text, update

from retinue.manager.store.postgres.constructs import table_of
from retinue.manager.store.tables import Cluster as ClusterRow

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession

_cluster = table_of(ClusterRow)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The identity of a database. `id` stays for good, `incarnation` is another one after each restore. The fingerprint
    of the certificate authority's newest certificate is empty until the first manager has started, `ca_certificates`
    are all of them in PEM, or empty; `ca_sealed` is the authority, sealed, or empty.
    """

    id: uuid.UUID
    incarnation: uuid.UUID
    ca_fingerprint: str
    ca_sealed: bytes
    ca_certificates: str = ""


async def read(tx: AsyncSession, *, lock: bool = False) -> Cluster:
    """The database's row; with `lock`, held until the commit."""
    columns = (_cluster.c.cluster_id, _cluster.c.incarnation, _cluster.c.ca_fingerprint, _cluster.c.ca_sealed)
    query = select(*columns, _cluster.c.ca_certificates).where(_cluster.c.id == 1)
    row = (await tx.execute(query.with_for_update() if lock else query)).one()
    return Cluster(row[0], row[1], row[2], bytes(row[3] or b""), row[4])


async def was_restored(tx: AsyncSession) -> bool:
    """Returns whether the rows were ever those of an earlier time."""
    rows = await tx.execute(select(_cluster.c.restore_time.is_not(None)).where(_cluster.c.id == 1))
    return bool(rows.scalar_one())


async def write_authority(tx: AsyncSession, fingerprint: str, certificates: bytes, sealed: bytes = b"") -> None:
    """Records the certificate authority of the cluster, and the authority itself if `sealed` is not empty."""
    authority = {"ca_sealed": sealed} if sealed else {}
    written = {"ca_fingerprint": fingerprint, "ca_certificates": certificates.decode(), **authority}
    await tx.execute(update(_cluster).where(_cluster.c.id == 1).values(**written))


# Begins another history, of rows that are those of an earlier time. Attempts that are made from here on have ids that
# none of the lost history can have, however often a backup is restored: their epochs follow the time,
# in units of ten seconds. Nodes have newer certificates than these rows know.
BEGIN_INCARNATION = """
    WITH forgotten AS (DELETE FROM orphan),
        agents AS (UPDATE agent SET certificate = '', former_certificate = ''),
        routers AS (UPDATE router SET certificate = '', former_certificate = '')
    UPDATE cluster SET incarnation = gen_random_uuid(), restore_time = now(),
        last_epoch = greatest(last_epoch + 1, (extract(epoch FROM now()) / 10)::int)
    WHERE id = 1 RETURNING incarnation
"""


async def begin_incarnation(tx: AsyncSession) -> uuid.UUID:
    """Begins another history; no agent has said yet what it runs. Returns its incarnation."""
    incarnation: uuid.UUID = (await tx.execute(text(BEGIN_INCARNATION))).scalar_one()
    return incarnation
