"""A manager with a thousand agents that only say that they are there: processor time, memory, and what heartbeats
write; peer: the same manager without any.

The manager and its database are real, and connections speak mutual TLS. The agents are one process: a port and a
certificate of each, and the protocol with null kernels behind it, as the manager cannot tell from real ones. They have
joined and come to rest before it is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import psycopg
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.devtools.cluster import Cluster, ClusterOptions
from retinue.manager.identity.authority import Authority
from retinue.manager.identity.principal import Kind
from tests.bench import end_politely, report
from tests.bench.idle import memory, used
from tests.bench.submission import appears, child

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

GIB = 2**30
_HEARTBEAT = 5.0
_SERVICE = pb.DESCRIPTOR.services_by_name["AgentService"].full_name
# Rows that agents are about, and that a heartbeat may have been thought to change.
_TABLES = ("agent", "attempt", "kernel", "session", "journal", "claim")
_WRITTEN = "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0) FROM pg_stat_user_tables WHERE relname = ANY(%s)"
_ENROL = """
    INSERT INTO agent (id, resource_group, state, drained, revoked, address, instance, architecture, software_version,
        underlay_address, underlay_mtu, boot_id, version, generation)
    SELECT 'a' || n, 'default', 'JOINING', FALSE, FALSE, '127.0.0.1:' || port, '', '', '', '', 0, '', 1, 1
    FROM unnest(%s::int[], %s::int[]) AS given(n, port)
"""


def _request(key: ec.EllipticCurvePrivateKey) -> str:
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


async def sync(requests: AsyncIterator[pb.SyncRequest], _context: Any) -> AsyncIterator[pb.SyncResponse]:
    """One stream of any agent: a welcome, then a heartbeat each time."""
    hello = (await anext(requests)).hello
    number = int(hello.agent_id[1:])
    yield pb.SyncResponse(
        welcome=pb.Welcome(
            agent_id=hello.agent_id,
            instance="i",
            version="1",
            architecture="x86_64",
            capacity={"cpu": 64_000, "mem": 64 * GIB},
            available_runtimes=["process"],
            underlay_address=f"10.1.{number // 250}.{number % 250 + 1}",
            underlay_mtu=1500,
        )
    )

    async def listen() -> None:
        async for _ in requests:
            pass

    listening = asyncio.create_task(listen())
    try:
        beat = 0
        while not listening.done():
            await asyncio.wait((listening,), timeout=hello.heartbeat_interval.ToSeconds() or _HEARTBEAT)
            beat += 1
            yield pb.SyncResponse(heartbeat=pb.Heartbeat(number=beat))
    finally:
        listening.cancel()


async def agents(directory: Path, number: int) -> None:
    """Serves all agents until it is killed; writes their ports to a file."""
    authority = Authority.load(directory / "manager", lambda: dt.datetime.now(dt.UTC))
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    request = _request(key)
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    handler = grpc.stream_stream_rpc_method_handler(sync, pb.SyncRequest.FromString, pb.SyncResponse.SerializeToString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Sync": handler}),))
    ports = []
    for position in range(number):
        issued = authority.issue_node(Kind.AGENT, f"a{position}", 1, request)
        credentials = grpc.ssl_server_credentials(
            [(pem, issued.certificate)], authority.certificate, require_client_auth=True
        )
        ports.append(server.add_secure_port("127.0.0.1:0", credentials))
    await server.start()
    (directory / "ports.new").write_text(" ".join(map(str, ports)))
    (directory / "ports.new").rename(directory / "ports")
    await server.wait_for_termination()


async def share(pid: int, seconds: float) -> float:
    """How much of one processor a process used, in percent."""
    before = used(pid)
    await asyncio.sleep(seconds)
    return 100 * (used(pid) - before) / seconds


async def main(number: int, seconds: float) -> None:
    """Prints the figures."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    async with Cluster(options=ClusterOptions(agents=0, prefix="rt-bench-")) as cluster:
        pid = cluster.manager.pid
        assert pid is not None
        await asyncio.sleep(10)
        bare, bare_memory = await share(pid, seconds), memory(pid)
        with contextlib.ExitStack() as stack:
            served = stack.enter_context(
                child(Path(__file__), "--serve", str(cluster.directory), "--agents", str(number))
            )
            ports = list(map(int, (await appears(cluster.directory / "ports")).split()))
            url = f"postgresql://postgres@/retinue?host={cluster.directory}/manager/postgres"
            connection = stack.enter_context(psycopg.connect(url, autocommit=True))
            connection.execute(_ENROL, (list(range(number)), ports))
            async with asyncio.timeout(120 + number / 5):
                while connection.execute(
                    "SELECT count(*) FROM agent WHERE id ~ '^a[0-9]' AND state <> 'ALIVE'"
                ).fetchone() != (0,):
                    await asyncio.sleep(0.5)
            # What follows on their coming, and each agent's first probe.
            await asyncio.sleep(40)
            written = connection.execute(_WRITTEN, (list(_TABLES),)).fetchone()
            beside = used(served.pid)
            value = await share(pid, seconds)
            beside = 100 * (used(served.pid) - beside) / seconds
            after = connection.execute(_WRITTEN, (list(_TABLES),)).fetchone()
            assert written is not None
            assert after is not None
            held = memory(pid)
        report(f"fleet-{number}-manager-cpu", value, "%", bare)
        report(f"fleet-{number}-agents-cpu", beside, "%", None)
        report(f"fleet-{number}-manager-memory", held, "MB", bare_memory)
        report(f"fleet-{number}-rows-written", float(after[0] - written[0]), "rows", None)


if __name__ == "__main__":
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--quick", action="store_true", help="small, for a look")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.quick:
        given.agents, given.seconds = 100, 15.0
    asyncio.run(agents(given.serve, given.agents) if given.serve else main(given.agents, given.seconds))
