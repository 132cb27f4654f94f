"""A session of three kernels on one node: its network, and programs that reach each other by name."""

from __future__ import annotations

from retinue.agent.v1 import agent_service_pb2 as pb

SESSION = "5e551011-0000-4000-8000-00000000000a"
NAMES = ("main1", "sub1", "sub2")
KERNELS = {name: f"5e551011-0000-4000-8000-00000000000{number}" for number, name in enumerate(NAMES)}

SERVE = """
import socket, sys
server = socket.create_server(("", 7000))
peer, _ = server.accept()
peer.sendall(socket.gethostname().encode())
"""
ASK = """
import socket, time
for name in ("sub1", "sub2"):
    while True:
        try:
            with socket.create_connection((name, 7000), timeout=300) as peer:
                print(name, peer.recv(100).decode(), flush=True)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
"""


def network() -> pb.Network:
    members = [
        pb.Member(
            kernel_id=KERNELS[name],
            hostname=name,
            address=f"10.200.0.{number}",
            mac=f"02:00:00:00:00:0{number}",
            underlay_address="127.0.0.1",
            local=True,
        )
        for number, name in enumerate(NAMES, 1)
    ]
    return pb.Network(session_id=SESSION, vni=0, subnet="10.200.0.0/24", mtu=1400, members=members)
