"""The manager's side of the conversation, for tests: enrolment, and a client of one agent."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf import duration_pb2

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.agent.v1 import agent_service_pb2_grpc as pb_grpc
from retinue.manager.v1 import enrollment_service_pb2 as enrollment_pb2
from retinue.manager.v1 import enrollment_service_pb2_grpc as enrollment_pb2_grpc
from retinue.rpc.bidi_call import BidiCall
from retinue.rpc.enrollment import recovery
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.agent.authority import Authority

TOKEN = "join-token-for-tests"
CHALLENGE = b"challenge-for-tests"
# After four intervals of silence an agent takes its manager for gone, and the manager here answers only while a test
# takes messages in. No test that is about something else may get there.
INTERVAL = 60.0
INCARNATION = "1ca4a71e-0000-4000-8000-000000000001"


class Enrollment(enrollment_pb2_grpc.EnrollmentServiceServicer):
    """Signs certificates for callers with the token, and keeps what they announce."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.agent_port = 0
        self.announced: asyncio.Queue[enrollment_pb2.AnnounceRequest] = asyncio.Queue()
        self.renewed: asyncio.Queue[str] = asyncio.Queue()
        self.recovered: asyncio.Queue[str] = asyncio.Queue()
        self.revoked = False
        self.callers: list[list[bytes]] = []
        self.life = (dt.timedelta(minutes=-1), dt.timedelta(hours=1))

    async def Enroll(self, request: Any, context: Any) -> Any:
        if request.join_token != TOKEN:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "unknown join token")
        begin, life = self.life
        return enrollment_pb2.EnrollResponse(
            certificate=self.authority.sign_request(request.certificate_request, request.agent_id, begin, life),
            ca_certificate=self.authority.certificate,
            agent_endpoint=f":{self.agent_port}",
        )

    async def Announce(self, request: Any, context: Any) -> Any:
        self.callers.append(list(context.auth_context()["x509_subject_alternative_name"]))
        await self.announced.put(request)
        return enrollment_pb2.AnnounceResponse()

    async def BeginRecovery(self, request: Any, context: Any) -> Any:
        return enrollment_pb2.BeginRecoveryResponse(challenge=CHALLENGE)

    async def RecoverCertificate(self, request: Any, context: Any) -> Any:
        key = x509.load_pem_x509_certificate(request.certificate.encode()).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        if self.revoked or not recovery.proves(key, request.proof, request.challenge, request.certificate_request):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "revoked")
        assert request.challenge == CHALLENGE
        certificate = self.authority.sign_request(request.certificate_request, request.agent_id)
        await self.recovered.put(certificate)
        return enrollment_pb2.RecoverCertificateResponse(certificate=certificate)

    async def RenewCertificate(self, request: Any, context: Any) -> Any:
        del context
        certificate = self.authority.sign_request(request.certificate_request, request.agent_id)
        await self.renewed.put(certificate)
        return enrollment_pb2.RenewCertificateResponse(certificate=certificate)


class Manager:
    """A manager as an agent sees it: a port for users, a port for agents, and a certificate of its own."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.enrollment = Enrollment(authority)
        self.key, self.certificate = authority.issue("manager.retinue", "spiffe://retinue/manager")
        self.address = ""
        self._servers: list[grpc.aio.Server] = []

    async def start(self) -> None:
        """Listens on two ports of the loopback."""
        pair = (self.key.encode(), (self.certificate + self.authority.certificate).encode())
        for mutual in (True, False):
            root = self.authority.certificate.encode() if mutual else None
            credentials = grpc.ssl_server_credentials([pair], root, require_client_auth=mutual)
            server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
            enrollment_pb2_grpc.add_EnrollmentServiceServicer_to_server(self.enrollment, server)
            port = server.add_secure_port("127.0.0.1:0", credentials)
            await server.start()
            self._servers.append(server)
            if mutual:
                self.enrollment.agent_port = port
            else:
                self.address = f"127.0.0.1:{port}"

    async def stop(self) -> None:
        """Stops listening."""
        for server in self._servers:
            await server.stop(0)

    async def announced(self) -> str:
        """The address of the next announcement."""
        async with asyncio.timeout(NEVER):
            return (await self.enrollment.announced.get()).address

    def channel(
        self, agent_id: str, address: str, key: str | None = None, certificate: str | None = None
    ) -> grpc.aio.Channel:
        """A channel to an agent, with the manager's certificate unless another one is given."""
        credentials = grpc.ssl_channel_credentials(
            self.authority.certificate.encode(), (key or self.key).encode(), (certificate or self.certificate).encode()
        )
        options = (
            ("grpc.ssl_target_name_override", f"{agent_id}.agent.retinue"),
            ("grpc.use_local_subchannel_pool", 1),
        )
        return grpc.aio.secure_channel(address, credentials, options=options)


class Conversation:
    """One Sync stream from the manager's side; keeps the last status of each attempt."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = pb_grpc.AgentServiceStub(channel)
        self.call = BidiCall(self.stub.Sync())
        self.welcome = pb.Welcome()
        self.statuses: dict[str, pb.AttemptStatus] = {}
        self.usages: dict[str, pb.AttemptUsage] = {}
        self.networks: set[str] = set()
        self.conditions: list[pb.NodeCondition] = []
        self.removed: set[str] = set()
        self.sequence = 0
        self.heartbeats = 0
        self.auto_ack = True

    async def open(
        self, agent_id: str, term: int = 1, interval: float = INTERVAL, incarnation: str = INCARNATION
    ) -> pb.Welcome:
        """Says hello and takes the welcome."""
        beat = duration_pb2.Duration()
        beat.FromTimedelta(dt.timedelta(seconds=interval))
        hello = pb.Hello(incarnation=incarnation, term=term, agent_id=agent_id, heartbeat_interval=beat)
        await self.call.write(pb.SyncRequest(hello=hello))
        response = await self.read()
        assert response.WhichOneof("step") == "welcome"
        self.welcome = response.welcome
        self.statuses = {status.attempt_id: status for status in self.welcome.attempts}
        self.networks = set(self.welcome.network_session_ids)
        self.conditions = list(self.welcome.node_conditions.conditions)
        return self.welcome

    async def read(self) -> pb.SyncResponse:
        """The next message; raises AioRpcError when the stream ended with an error."""
        async with asyncio.timeout(NEVER):
            response = await self.call.read()
        assert response is not None, "the stream ended"
        return response

    async def step(self) -> None:
        """Takes one message in."""
        response = await self.read()
        if response.WhichOneof("step") == "heartbeat":
            self.heartbeats += 1
            await self.call.write(pb.SyncRequest(heartbeat=pb.Heartbeat()))
            return
        if response.WhichOneof("step") == "node_conditions":
            self.conditions = list(response.node_conditions.conditions)
            return
        if response.WhichOneof("step") == "usage":
            self.usages |= {usage.attempt_id: usage for usage in response.usage.attempts}
            return
        report = response.report
        assert report.sequence == self.sequence + 1
        self.sequence = report.sequence
        for status in report.attempts:
            self.statuses[status.attempt_id] = status
        for attempt_id in report.removed_attempt_ids:
            del self.statuses[attempt_id]
            self.removed.add(attempt_id)
        self.networks -= set(report.removed_network_session_ids)
        if self.auto_ack:
            await self.ack()

    async def ack(self) -> None:
        """Says that everything up to the last report is recorded."""
        await self.call.write(pb.SyncRequest(ack=pb.Ack(sequence=self.sequence)))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Takes messages in until the condition holds."""
        async with asyncio.timeout(NEVER):
            while not condition():
                await self.step()

    async def until_state(self, attempt_id: str, *states: int) -> pb.AttemptStatus:
        """Takes messages in until the attempt is in one of the states."""
        await self.until(lambda: attempt_id in self.statuses and self.statuses[attempt_id].state in states)
        return self.statuses[attempt_id]

    async def snapshot(
        self, *attempts: pb.Attempt, networks: tuple[pb.Network, ...] = (), names_others: bool = True
    ) -> None:
        """Sends the whole desired set; with `names_others`, all else that the agent has is named as removed."""
        wanted = {attempt.id for attempt in attempts}
        sessions = {network.session_id for network in networks}
        others = [key for key in self.statuses if key not in wanted] if names_others else ()
        gone = self.networks - sessions if names_others else ()
        snapshot = pb.Snapshot(
            attempts=attempts, networks=networks, removed_attempt_ids=others, removed_network_session_ids=gone
        )
        await self.call.write(pb.SyncRequest(snapshot=snapshot))

    async def change(self, **values: Any) -> None:
        """Sends a difference."""
        await self.call.write(pb.SyncRequest(change=pb.Change(**values)))

    def close(self) -> None:
        """Cuts the stream."""
        self.call.cancel()


def attempt(kernel_id: str, *command: str, goal: int = pb.GOAL_RUNNING, **values: Any) -> pb.Attempt:
    """An attempt with number 1."""
    grace = duration_pb2.Duration(seconds=values.pop("stop_grace", 5))
    settings: dict[str, Any] = {
        "session_id": "5e551011-0000-4000-8000-000000000001",
        "hostname": "main1",
        "slots": {"cpu": 1000, "mem": 128 << 20},
    }
    return pb.Attempt(
        id=f"{kernel_id}.1",
        kernel_id=kernel_id,
        number=1,
        goal=pb.Goal.ValueType(goal),
        stop_grace=grace,
        command=command,
        **(settings | values),
    )
