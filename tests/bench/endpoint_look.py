"""A look of the endpoint controller at a fleet at rest, in processor time of the manager;
peer: the same at a fleet of a tenth.

Rows of endpoints, sessions and replicas are made by `INSERT … SELECT`;
every replica is ready, and routers have acknowledged all.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from typing import TYPE_CHECKING

import orjson
from sqlalchemy import text

from retinue.manager.domain.endpoints.model import EndpointTraffic, RevisionTraffic, RoutedEndpoint, Traffic
from retinue.manager.domain.endpoints.scaling import ScalingPolicy
from retinue.manager.domain.endpoints.spec import EndpointSettings, ReplicaSpec, RevisionSpec
from retinue.manager.domain.session.spec import SessionSpec
from retinue.manager.domain.session.spec_codec import decode
from retinue.manager.endpoints.controller import EndpointController
from retinue.manager.store.endpoints.endpoint_revisions import encode_revision
from retinue.manager.store.migrations import migrate
from retinue.manager.store.postgres.database import Database
from retinue.manager.store.postgres.embedded import EmbeddedServer
from tests.bench import end_politely, report

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping, Sequence

TERM = 1
REPLICAS = 4
SESSION = (
    '{"version": 1, "name": "s", "project": "", "resource_group": "default", "type": "INFERENCE", "labels": {}, "roles": {},'
    ' "kernel": {"image": "", "command": ["true"], "environment": {}, "slots": {}}}'
)


class Routers:
    """One router that serves each table at once, and reports four requests in flight on every endpoint."""

    def __init__(self) -> None:
        self.revision = 0
        self.table: tuple[RoutedEndpoint, ...] = ()
        self.endpoints: dict[uuid.UUID, EndpointTraffic] = {}

    def publish(self, endpoints: Sequence[RoutedEndpoint]) -> int:
        if tuple(endpoints) != self.table:
            self.table, self.revision = tuple(endpoints), self.revision + 1
            busy = EndpointTraffic(revisions={1: RevisionTraffic(in_flight=24, requests=100)})
            self.endpoints = {item.id: busy for item in endpoints}
        return self.revision

    def traffic(self) -> Traffic:
        return Traffic(live=1, acknowledged=self.revision, current=1, endpoints=self.endpoints)

    def refusals(self) -> Mapping[uuid.UUID, str]:
        return {}


async def fill(database: Database, number: int) -> None:
    """Makes endpoints with ready replicas."""
    settings = EndpointSettings(scaling=ScalingPolicy(min=1, max=8))
    session = decode(orjson.loads(SESSION))
    assert isinstance(session, SessionSpec)
    spec = encode_revision(RevisionSpec(session, ReplicaSpec(8000)))
    async with database.transaction() as tx:
        await tx.execute(text("UPDATE leadership SET term = :term"), {"term": TERM})
        await tx.execute(
            text("""
                WITH e AS (
                    INSERT INTO endpoint (id, name, project, owner, resource_group, host_label, lifecycle, settings, version,
                        newest_revision, target, target_reason, first_ready_time)
                    SELECT gen_random_uuid(), 'e' || n, 'default', 'owner-' || n % 50, 'default', 'e' || n, 'ACTIVE', CAST(:settings AS jsonb),
                        1, 1, :replicas, '', now() FROM generate_series(1, :number) AS n RETURNING id, owner
                ), r AS (
                    INSERT INTO endpoint_revision (endpoint_id, number, spec, failures, author)
                    SELECT id, 1, CAST(:spec AS jsonb), 0, owner FROM e
                ), t AS (
                    INSERT INTO endpoint_traffic (endpoint_id, revision, percent) SELECT id, 1, 100 FROM e
                ), s AS (
                    INSERT INTO session (id, name, owner, project, resource_group, type, cluster_mode, cluster_size, priority, spec, state,
                        result, reason, message, network, tries, failed_starts, last_failure, force, version, start_time)
                    SELECT gen_random_uuid(), e.id::text || n, e.owner, 'default', 'default', 'INFERENCE', 'SINGLE_NODE', 1, 10,
                        CAST(:session AS jsonb), 'RUNNING', 'UNDEFINED', '', '', '', 0, 0, '', FALSE, 1, now()
                    FROM e, generate_series(1, :replicas) AS n RETURNING id, name
                ), k AS (
                    INSERT INTO kernel (id, session_id, role, role_index, local_rank, hostname, slots, state, epoch, address, reason)
                    SELECT id, id, 'main', 1, 0, 'main1', '{"cpu": 1000}', 'RUNNING', 1, '', '' FROM s
                )
                INSERT INTO endpoint_replica (session_id, endpoint_id, revision, state, was_ready, message, health, health_message, address, port)
                SELECT id, CAST(left(name, 36) AS uuid), 1, 'READY', TRUE, '', 'READY', '', '192.0.2.1', 31000 FROM s
            """),
            {
                "number": number,
                "replicas": REPLICAS,
                "settings": orjson.dumps(settings).decode(),
                "spec": orjson.dumps(spec).decode(),
                "session": SESSION,
            },
        )
        await tx.execute(text("ANALYZE"))


async def measure(database: Database, number: int, rounds: int) -> list[float]:
    """Milliseconds of processor time of looks, after the first ones."""
    await fill(database, number)
    now = [1_000.0]
    controller = EndpointController(database, TERM, lambda _affected: None, Routers(), clock=lambda: now[0])
    found = []
    for count in range(rounds + 3):
        began = time.process_time()
        await controller.look()
        # Each second look decides how many replicas there are.
        now[0] += 1.0
        if count >= 3:
            found.append((time.process_time() - began) * 1_000)
    return found


async def main(arguments: argparse.Namespace) -> None:
    directory = Path(tempfile.mkdtemp(prefix="retinue-bench-"))
    server = EmbeddedServer(directory / "postgres")
    url = await server.start()
    database = Database(url)
    try:
        await migrate(url)
        found: list[list[float]] = []
        for number in (arguments.endpoints // 10, arguments.endpoints):
            async with database.transaction() as tx:
                await tx.execute(text("TRUNCATE endpoint, session CASCADE"))
            found.append(await measure(database, number, arguments.rounds))
    finally:
        await database.dispose()
        await server.stop()
        shutil.rmtree(directory, ignore_errors=True)
    few, many = found
    name = f"endpoint-look-{arguments.endpoints}"
    report(name, statistics.median(many), "ms", statistics.median(few), spread=many)


if __name__ == "__main__":
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.quick:
        given.endpoints, given.rounds = 100, 4
    asyncio.run(main(given))
