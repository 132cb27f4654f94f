"""What is wrong with a request is said with the exact code, reason and field; nothing is made, and nothing breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from grpc_status import rpc_status

from retinue.client.errors import NotFound
from retinue.client.settings import read_ca
from retinue.manager.v1 import (
    kernel_service_pb2,
    kernel_service_pb2_grpc,
    session_pb2,
    session_service_pb2,
    session_service_pb2_grpc,
)
from retinue.manager.v1.journal_position_pb2 import JournalPosition
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

# What a value of any enum may be when it comes from elsewhere.
UNDECLARED: Any = 99

pytestmark = pytest.mark.asyncio(loop_scope="session")

pb = session_service_pb2


@pytest_asyncio.fixture(loop_scope="session")
async def channel(cluster: Cluster) -> AsyncIterator[grpc.aio.Channel]:
    settings = cluster.settings
    credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(read_ca(settings.ca)),
        grpc.access_token_call_credentials(settings.token or ""),
    )
    options = (("grpc.ssl_target_name_override", "manager.retinue"),)
    async with grpc.aio.secure_channel(settings.endpoint, credentials, options) as made:
        yield made


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> session_service_pb2_grpc.SessionServiceAsyncStub:
    made: session_service_pb2_grpc.SessionServiceAsyncStub = session_service_pb2_grpc.SessionServiceStub(channel)
    return made


def spec(**changes: Any) -> session_pb2.SessionSpec:
    made = session_pb2.SessionSpec(type=session_pb2.SESSION_TYPE_BATCH, kernel=session_pb2.KernelSpec(command=["true"]))
    made.MergeFrom(session_pb2.SessionSpec(**changes))
    return made


def slots(**amounts: str) -> session_pb2.KernelSpec:
    return session_pb2.KernelSpec(slots=amounts)


CREATE = [
    (spec(name="UPPER"), "spec.name"),
    (spec(name="a" * 64), "spec.name"),
    (spec(name="-rf"), "spec.name"),
    (spec(name="../x"), "spec.name"),
    (spec(name="a\nb"), "spec.name"),
    (spec(name="main1"), "spec.name"),
    (spec(cluster_size=-1), "spec.cluster_size"),
    (spec(cluster_size=10**9), "spec.cluster_size"),
    (spec(priority=101), "spec.priority"),
    (spec(priority=-1), "spec.priority"),
    (spec(cluster_mode=99), "spec.cluster_mode"),
    (session_pb2.SessionSpec(kernel=session_pb2.KernelSpec(command=["true"])), "spec.type"),
    (session_pb2.SessionSpec(type=UNDECLARED, kernel=session_pb2.KernelSpec(command=["true"])), "spec.type"),
    (session_pb2.SessionSpec(type=session_pb2.SESSION_TYPE_SYSTEM), "spec.mounts"),
    (spec(termination_grace=Duration(seconds=86_401)), "spec.termination_grace"),
    (spec(termination_grace=Duration(seconds=301), preemptible=True), "spec.termination_grace"),
    (spec(stop_signal="STOP"), "spec.stop_signal"),
    (spec(description="\x1b[2J"), "spec.description"),
    (spec(time_warning={"signal": "USR1", "before": Duration(seconds=60)}), "spec.time_warning"),
    (
        spec(time_limit=Duration(seconds=60), time_warning={"signal": "USR1", "before": Duration(seconds=60)}),
        "spec.time_warning.before",
    ),
    (spec(time_limit=Duration(seconds=60), time_warning={"signal": "USR1"}), "spec.time_warning.before"),
    (spec(time_limit=Duration(seconds=60), time_warning={"before": Duration(seconds=6)}), "spec.time_warning.signal"),
    (spec(termination_grace=Duration(seconds=-1)), "spec.termination_grace"),
    (spec(termination_grace=Duration(seconds=1, nanos=2_000_000_000)), "spec.termination_grace"),
    (spec(resource_group="nowhere"), "spec.resource_group"),
    (spec(agents=["nobody"]), "spec.agents[0]"),
    (spec(agents=["No Body"]), "spec.agents[0]"),
    (spec(agents=["a", "a"]), "spec.agents[1]"),
    (spec(agent_choice=session_pb2.AGENT_CHOICE_STRICT), "spec.agent_choice"),
    (spec(agent_choice=99), "spec.agent_choice"),
    (spec(architecture="x86 64"), "spec.architecture"),
    (spec(endpoint="-"), "spec.endpoint"),
    (spec(replica_placement=session_pb2.REPLICA_PLACEMENT_SPREAD), "spec.replica_placement"),
    (spec(endpoint="e", replica_placement=99), "spec.replica_placement"),
    (spec(time_limit=Duration(nanos=1)), "spec.time_limit"),
    (spec(time_limit=Duration(seconds=366 * 86400)), "spec.time_limit"),
    (spec(time_limit=Duration(seconds=1, nanos=2_000_000_000)), "spec.time_limit"),
    (spec(kernel=slots(cpu="0")), "spec.kernel.slots['cpu']"),
    (spec(kernel=slots(cpu="-1")), "spec.kernel.slots['cpu']"),
    (spec(kernel=slots(cpu="NaN")), "spec.kernel.slots['cpu']"),
    (spec(kernel=slots(cpu="inf")), "spec.kernel.slots['cpu']"),
    (spec(kernel=slots(cpu="1e400")), "spec.kernel.slots['cpu']"),
    (spec(kernel=slots(cpu="9223372036854775808")), "spec.kernel.slots['cpu']"),
    (spec(kernel=slots(mem="4x")), "spec.kernel.slots['mem']"),
    (spec(kernel=session_pb2.KernelSpec(slots={"cuda.device": "0.5"})), "spec.kernel.slots['cuda.device']"),
    (spec(kernel=session_pb2.KernelSpec(environment={"BACKENDAI_X": "1"})), "spec.kernel.environment['BACKENDAI_X']"),
    (spec(kernel=session_pb2.KernelSpec(environment={"A=B": "1"})), "spec.kernel.environment['A=B']"),
    (spec(kernel=session_pb2.KernelSpec(image="Not An Image")), "spec.kernel.image"),
    *(
        (spec(roles=[session_pb2.RoleSpec(role=name)]), "spec.roles[0].role")
        for name in ("", "w1", "W", "-w", "a" * 33)
    ),
    (spec(roles=[session_pb2.RoleSpec(role="main", count=2)]), "spec.roles[0].count"),
    (spec(roles=[session_pb2.RoleSpec(role="main", count=0)]), "spec.roles[0].count"),
    (spec(roles=[session_pb2.RoleSpec(role="w", count=-1)]), "spec.roles[0].count"),
    (spec(roles=[session_pb2.RoleSpec(role="w", count=2)], cluster_size=4), "spec.cluster_size"),
    (spec(roles=[session_pb2.RoleSpec(role="w", count=1023), session_pb2.RoleSpec(role="x")]), "spec.cluster_size"),
    (spec(roles=[session_pb2.RoleSpec(role="r" + "x" * n) for n in range(33)][::-1]), "spec.roles"),
    (spec(roles=[session_pb2.RoleSpec(role="sub"), session_pb2.RoleSpec(role="sub")]), "spec.roles[1].role"),
    (spec(labels={"a": "x" * 257}), "spec.labels['a']"),
    *(
        (spec(mounts=[session_pb2.Mount(source=source, target="/data")]), "spec.mounts[0].source")
        for source in ("", "relative", "/a\0", "/" + "a" * 1024)
    ),
    *(
        (spec(mounts=[session_pb2.Mount(source="/data", target=target)]), "spec.mounts[0].target")
        for target in ("", "relative", "/", "/a/../b", "/etc/cron.d", "/proc", "/run/kernel/bin", "/run/kernel/init")
    ),
    (spec(mounts=[session_pb2.Mount(source="/data", target=f"/{name}") for name in "xx"]), "spec.mounts[1].target"),
    (spec(mounts=[session_pb2.Mount(source="/data", target=f"/m{number}") for number in range(33)]), "spec.mounts"),
    (spec(bootstrap_script="x" * 65_537), "spec.bootstrap_script"),
    (spec(bootstrap_script="a\0b"), "spec.bootstrap_script"),
    (spec(earliest_start_time=Timestamp(seconds=2**40)), "spec.earliest_start_time"),
    (spec(earliest_start_time=Timestamp(nanos=-1)), "spec.earliest_start_time"),
    (spec(name="me", depends_on=["me"]), "spec.depends_on[0]"),
    (spec(depends_on=["nobody"]), "spec.depends_on[0]"),
    (spec(depends_on=["$(x)"]), "spec.depends_on[0]"),
    (spec(depends_on=["x"] * 1001), "spec.depends_on"),
    (spec(retry=session_pb2.RetryPolicy()), "spec.retry.max_attempts"),
    (spec(webhooks=[session_pb2.Webhook(url="file:///etc/passwd")]), "spec.webhooks[0].url"),
    (spec(webhooks=[session_pb2.Webhook(url="http://u:p@x/")]), "spec.webhooks[0].url"),
    (spec(webhooks=[session_pb2.Webhook(url="http://x/", events=[UNDECLARED])]), "spec.webhooks[0].events"),
    (spec(webhooks=[session_pb2.Webhook(url="http://x/", secret="x" * 257)]), "spec.webhooks[0].secret"),
    (spec(webhooks=[session_pb2.Webhook(url="http://x/")] * 5), "spec.webhooks"),
    (spec(retry=session_pb2.RetryPolicy(max_attempts=101)), "spec.retry.max_attempts"),
    (spec(retry=session_pb2.RetryPolicy(max_attempts=2, backoff=Duration(seconds=-1))), "spec.retry.backoff"),
    (
        spec(retry=session_pb2.RetryPolicy(max_attempts=2, max_backoff=Duration(seconds=86_401))),
        "spec.retry.max_backoff",
    ),
    (session_pb2.SessionSpec(type=session_pb2.SESSION_TYPE_BATCH), "spec.kernel.command"),
]


def details(error: grpc.aio.AioRpcError) -> tuple[str, list[str]]:
    """The reason, and the fields that are named."""
    status = rpc_status.from_call(error)
    assert status is not None
    information, bad = ErrorInfo(), BadRequest()
    for detail in status.details:
        detail.Unpack(information) or detail.Unpack(bad)
    assert information.domain == "retinue"
    return information.reason, [violation.field for violation in bad.field_violations]


@pytest.mark.attack(
    "odd-names",
    "odd-amounts",
    "odd-cluster-sizes",
    "odd-durations",
    "images-of-forbidden-registries",
    "targets-of-mounts",
    "odd-variables",
    "large-messages",
)
@pytest.mark.parametrize(("request_spec", "field"), CREATE, ids=lambda value: value if isinstance(value, str) else "")
async def test_create(
    stub: session_service_pb2_grpc.SessionServiceAsyncStub, request_spec: session_pb2.SessionSpec, field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.CreateSession(pb.CreateSessionRequest(spec=request_spec))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details(raised.value) == ("INVALID_FIELD", [field])


@pytest.mark.attack("forged-filters", "odd-pages", "slow-filters")
@pytest.mark.parametrize(
    ("method", "request_message", "code", "reason", "fields"),
    [
        (
            "CreateSession",
            pb.CreateSessionRequest(spec=spec(), request_id="x"),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            ["request_id"],
        ),
        (
            "CreateSession",
            pb.CreateSessionRequest(spec=spec(project="other")),
            "PERMISSION_DENIED",
            "PROJECT_DENIED",
            [],
        ),
        ("GetSession", pb.GetSessionRequest(), "NOT_FOUND", "NOT_FOUND", []),
        ("GetSession", pb.GetSessionRequest(session="'; DROP TABLE session; --"), "NOT_FOUND", "NOT_FOUND", []),
        ("GetSession", pb.GetSessionRequest(session="0" * 36), "NOT_FOUND", "NOT_FOUND", []),
        ("GetSession", pb.GetSessionRequest(session="x\0y"), "INVALID_ARGUMENT", "INVALID_FIELD", ["session"]),
        ("GetSessionGraph", pb.GetSessionGraphRequest(session="nobody"), "NOT_FOUND", "NOT_FOUND", []),
        ("TerminateSession", pb.TerminateSessionRequest(session="nobody"), "NOT_FOUND", "NOT_FOUND", []),
        (
            "BatchTerminateSessions",
            pb.BatchTerminateSessionsRequest(),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            ["sessions"],
        ),
        (
            "BatchTerminateSessions",
            pb.BatchTerminateSessionsRequest(sessions=["nobody", "x\0y"]),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            ["sessions[1]"],
        ),
        ("ExplainSession", pb.ExplainSessionRequest(session="nobody"), "NOT_FOUND", "NOT_FOUND", []),
        ("ListSessions", pb.ListSessionsRequest(page_size=-1), "INVALID_ARGUMENT", "INVALID_FIELD", ["page_size"]),
        (
            "ListSessions",
            pb.ListSessionsRequest(page_token="forged"),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            ["page_token"],
        ),
        ("ListSessions", pb.ListSessionsRequest(filter="owner"), "INVALID_ARGUMENT", "INVALID_FIELD", ["filter"]),
        (
            "ListSessions",
            pb.ListSessionsRequest(filter='secret = "x"'),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            ["filter"],
        ),
        (
            "ListSessions",
            pb.ListSessionsRequest(filter='owner = "x" OR true'),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            ["filter"],
        ),
        ("ListSessions", pb.ListSessionsRequest(order_by="owner"), "INVALID_ARGUMENT", "INVALID_FIELD", ["order_by"]),
    ],
)
async def test_unary(stub: Any, method: str, request_message: Any, code: str, reason: str, fields: list[str]) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await getattr(stub, method)(request_message)
    assert raised.value.code().name == code
    assert details(raised.value) == (reason, fields)


@pytest.mark.parametrize(
    ("method", "request_message", "code", "reason", "fields"),
    [
        (
            "WatchSessions",
            pb.WatchSessionsRequest(after=JournalPosition(revision=-1)),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            ["after.revision"],
        ),
        *(
            (
                "WatchSessions",
                pb.WatchSessionsRequest(min_interval=Duration(nanos=nanos, seconds=seconds)),
                "INVALID_ARGUMENT",
                "INVALID_FIELD",
                ["min_interval"],
            )
            for seconds, nanos in ((-1, 0), (1, 1000), (0, 2_000_000_000))
        ),
        ("WatchSessions", pb.WatchSessionsRequest(session_id="x"), "INVALID_ARGUMENT", "INVALID_FIELD", ["session_id"]),
        (
            "WatchSessions",
            pb.WatchSessionsRequest(until_ended=True),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            ["until_ended"],
        ),
        (
            "WatchSessions",
            pb.WatchSessionsRequest(after=JournalPosition(revision=2**60)),
            "OUT_OF_RANGE",
            "REVISION_IN_FUTURE",
            [],
        ),
        (
            "WatchSessions",
            pb.WatchSessionsRequest(session_id="00000000-0000-4000-8000-000000000000"),
            "NOT_FOUND",
            "NOT_FOUND",
            [],
        ),
        ("StreamLogs", kernel_service_pb2.StreamLogsRequest(session="nobody"), "NOT_FOUND", "NOT_FOUND", []),
        (
            "StreamLogs",
            kernel_service_pb2.StreamLogsRequest(session="x", offset=-1),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            ["offset"],
        ),
        (
            "StreamLogs",
            kernel_service_pb2.StreamLogsRequest(session="x", attempt=-1),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            ["attempt"],
        ),
        (
            "StreamLogs",
            kernel_service_pb2.StreamLogsRequest(session="x", all=True, offset=3),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            ["all"],
        ),
    ],
)
async def test_streaming(
    channel: grpc.aio.Channel, method: str, request_message: Any, code: str, reason: str, fields: list[str]
) -> None:
    service: Any = session_service_pb2_grpc.SessionServiceStub(channel)
    if method == "StreamLogs":
        service = kernel_service_pb2_grpc.KernelServiceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in getattr(service, method)(request_message):
            pass
    assert raised.value.code().name == code
    assert details(raised.value) == (reason, fields)


async def test_logs_past_the_end_and_of_unknown_kernels(client: Client, channel: grpc.aio.Channel) -> None:
    logs = kernel_service_pb2_grpc.KernelServiceStub(channel)
    session = await client.sessions.create(type="batch", command=["echo", "x"])
    await session.wait_ended(NEVER)
    for request, code, reason in (
        (kernel_service_pb2.StreamLogsRequest(session=session.id, offset=100), "OUT_OF_RANGE", "OFFSET_PAST_END"),
        (
            kernel_service_pb2.StreamLogsRequest(session=session.id, hostname="sub9"),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
        ),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in logs.StreamLogs(request):
                pass
        assert raised.value.code().name == code
        assert details(raised.value)[0] == reason


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"hostname": "main2"}, "hostname"),
        ({"interval": {"seconds": 9}}, "interval"),
        ({"interval": {"seconds": 3601}}, "interval"),
        ({"interval": {"seconds": 10, "nanos": -1}}, "interval"),
        ({"since_time": {"nanos": -1}}, "since_time"),
        ({"page_size": -1}, "page_size"),
        ({"page_token": "x"}, "page_token"),
    ],
)
async def test_samples_of_usage(client: Client, channel: grpc.aio.Channel, values: dict[str, Any], field: str) -> None:
    session = await client.sessions.create(type="batch", command=["true"], slots={"cpu": "100000"})
    request = kernel_service_pb2.ListUsageSamplesRequest(session=session.id, **values)
    try:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await kernel_service_pb2_grpc.KernelServiceStub(channel).ListUsageSamples(request)
    finally:
        await session.terminate(force=True)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details(raised.value)[1] == [field]


@pytest.mark.attack("odd-variables", "large-messages")
async def test_a_message_over_the_limit_is_refused(stub: Any) -> None:
    huge = spec(kernel=session_pb2.KernelSpec(environment={"A": "x" * 5_000_000}))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.CreateSession(pb.CreateSessionRequest(spec=huge))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.attack("names-of-others-sessions", "forged-filters")
async def test_users_do_not_see_each_other(client: Client, cluster: Cluster) -> None:
    for name in ("mallory", "alice"):
        await client.users.create(name, projects={"default": "member"})
    tokens = {name: (await client.tokens.create(user=name)).secret for name in ("mallory", "alice")}
    async with cluster.client(tokens["alice"]) as alice, cluster.client(tokens["mallory"]) as mallory:
        session = await alice.sessions.create(type="batch", command=["true"], slots={"cpu": "64"}, name="hers")
        try:
            assert [s.id async for s in mallory.sessions.list()] == []
            for reference in (session.id, session.id[:12], "hers"):
                with pytest.raises(NotFound, match="no such session"):
                    await mallory.sessions.get(reference)
                with pytest.raises(NotFound, match="no such session"):
                    await mallory.sessions.terminate(reference)
            with pytest.raises(NotFound, match="no such session"):
                async for _ in mallory.sessions.logs(session.id):
                    pass
            assert [s.id async for s in mallory.sessions.list(filter='owner = "alice"')] == []
            assert (await client.sessions.get(session.id)).id == session.id
        finally:
            await session.terminate()
