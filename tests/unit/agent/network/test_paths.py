"""Who probes whom, what packets say, and what follows from those that come and those that do not."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace

import pytest

from retinue.agent.network.core.echo_packets import SMALLEST, Arrival, encode_request, parse_arrival
from retinue.agent.network.core.path_proof import INTERVAL, ROUND, SMALL, TRIES, PathProof, PathState
from retinue.agent.network.core.path_topology import MESH_NODES, path_ends, peers_of
from retinue.agent.network.core.topology import Member, Network
from tests.unit.agent.network.topologies import SESSION

FULL = 1450
TOKEN = b"12345678"
IP = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 0, 0, 0, 64, 1, 0, bytes([169, 254, 128, 2]), bytes([169, 254, 128, 1]))


def member(rank: int, node: str, *, local: bool = False) -> Member:
    address, mac = f"10.128.0.{rank + 2}", f"0a:58:0a:80:00:{rank + 2:02x}"
    return Member(f"k{rank}", f"sub{rank}", address, mac, node, local, f"agent-{node[-1]}", proves_paths=True)


def network(*members: Member, vni: int = 77) -> Network:
    return Network(SESSION, vni, "10.128.0.0/24", FULL, members)


def test_nodes_agree_on_numbers_whatever_the_order_of_kernels() -> None:
    nodes = ["192.0.2.10", "192.0.2.9", "192.0.2.9"]
    seen = {}
    for here in {*nodes}:
        ends = path_ends(network(*(member(rank, node, local=node == here) for rank, node in enumerate(nodes))))
        assert ends is not None
        (peer,) = ends.peers
        seen[here] = ends.own.address, ends.own.mac
        assert (peer.underlay_address, peer.name) == next((node, f"agent-{node[-1]}") for node in nodes if node != here)
    assert seen == {
        "192.0.2.9": ("169.254.128.1", "0e:5a:a9:fe:80:01"),
        "192.0.2.10": ("169.254.128.2", "0e:5a:a9:fe:80:02"),
    }


@pytest.mark.parametrize(
    "members",
    [
        network(member(0, "192.0.2.1", local=True), vni=0),
        network(member(0, "192.0.2.1", local=True), member(1, "192.0.2.1", local=True)),
        network(member(0, "192.0.2.2")),
        network(replace(member(0, "192.0.2.1", local=True), underlay_address=""), member(1, "192.0.2.2")),
    ],
)
def test_nobody_is_probed_without_another_node(members: Network) -> None:
    assert path_ends(members) is None


@pytest.mark.parametrize("count", [2, 3, MESH_NODES, MESH_NODES + 1, 100, 1000])
def test_who_is_probed_probes_and_every_node_is_probed_by_several(count: int) -> None:
    main = count // 3
    peers = {number: peers_of(number, count, main) for number in range(count)}
    for number, others in peers.items():
        assert number not in others
        assert all(number in peers[other] for other in others)
        assert len(others) >= min(count - 1, 8)
        assert main in others or number == main
    pairs = sum(map(len, peers.values())) // 2
    assert pairs == count * (count - 1) // 2 if count <= MESH_NODES else pairs < count * 12


def test_packets_are_of_the_size_that_was_asked_for_and_answers_are_known_by_the_token() -> None:
    for size in (SMALLEST, SMALL, 1449, FULL):
        request = encode_request(TOKEN, 7, size)
        assert len(request) == size - 20
        assert parse_arrival(IP + request, TOKEN) == Arrival("169.254.128.2", size)
        answer = b"\0" + request[1:]
        assert parse_arrival(IP + answer, TOKEN) == Arrival("169.254.128.2", size, 7)
        assert parse_arrival(IP + answer, b"87654321") is None


@pytest.mark.parametrize(
    "packet", [b"", b"\x45", IP, IP + b"\x08", b"\x41" + IP[1:] + bytes(30), IP + b"\x03" * 40, IP + bytes(10)]
)
def test_other_packets_say_nothing(packet: bytes) -> None:
    assert parse_arrival(packet, TOKEN) is None


class Way:
    """A path by which packets up to a size come, and the time on it."""

    def __init__(self) -> None:
        self.proof, self.now, self.limit = PathProof(FULL), 0.0, FULL
        self.sent: list[tuple[float, int]] = []

    def run(self, seconds: float) -> PathState:
        end = self.now + seconds
        while self.now < end:
            for size in self.proof.due(self.now):
                self.sent.append((self.now, size))
                if size <= self.limit:
                    self.proof.arrive(size, self.now + 0.001)
            self.now += max(self.proof.wait(self.now), 0.001)
        return self.proof.verdict.state


def test_a_good_path_is_proved_at_once_and_probed_seldom() -> None:
    way = Way()
    assert way.run(0.01) is PathState.PROVED
    way.sent.clear()
    assert way.run(100 * INTERVAL) is PathState.PROVED
    assert len(way.sent) <= 202


def test_a_path_is_proved_as_soon_as_the_other_node_is_there() -> None:
    way = Way()
    way.limit = 0
    way.run(0.5)
    sends = [time for time, size in way.sent if size == FULL]
    assert max(later - earlier for earlier, later in itertools.pairwise(sends)) <= ROUND / 2
    way.limit = FULL
    assert way.run(ROUND) is PathState.PROVED


def test_a_path_by_which_nothing_comes_is_broken_after_so_many_rounds_and_not_before() -> None:
    way = Way()
    way.limit = 0
    assert way.run(ROUND * (TRIES - 1)) is PathState.WAITING
    assert way.run(ROUND * 2) is PathState.NOTHING
    assert way.proof.never_came
    way.limit = FULL
    assert way.run(ROUND * 2) is PathState.PROVED


def test_packets_that_are_lost_now_and_then_break_nothing() -> None:
    way = Way()
    for number in range(200):
        way.limit = FULL if number % TRIES == 0 else 0
        assert way.run(ROUND) is PathState.PROVED, number


def test_a_path_that_was_lost_has_to_come_back_for_two_rounds() -> None:
    way = Way()
    way.run(1)
    way.limit = 0
    assert way.run(INTERVAL + ROUND * (TRIES + 1)) is PathState.NOTHING
    since = way.proof.verdict.since
    assert 0 < since <= INTERVAL + 1
    way.limit = FULL
    way.proof.arrive(FULL, way.now)
    way.proof.arrive(FULL, way.now + 0.01)
    assert way.proof.verdict.state is PathState.NOTHING
    assert way.run(3 * ROUND) is PathState.PROVED


@pytest.mark.parametrize("limit", [SMALL, SMALL + 1, 576, 1350, FULL - 1])
def test_what_passes_is_found_to_the_byte(limit: int) -> None:
    way = Way()
    way.run(1)
    way.limit = limit
    states = {way.run(0.1) for _ in range(400)}
    assert way.proof.verdict.state is PathState.SMALL_ONLY
    assert way.proof.verdict.passing == limit
    assert PathState.NOTHING not in states
    way.limit = FULL
    assert way.run(3 * ROUND) is PathState.PROVED
    way.limit = 0
    assert way.run(INTERVAL + ROUND * (TRIES + 1)) is PathState.NOTHING


def test_requests_of_the_other_node_count() -> None:
    proof = PathProof(FULL)
    proof.due(0.0)
    proof.arrive(SMALL, 0.1)
    assert proof.verdict.state is PathState.WAITING
    proof.arrive(FULL, 0.2)
    assert proof.verdict.state is PathState.PROVED
    assert proof.due(0.3) == []


def test_a_process_that_was_held_up_for_long_takes_no_path_for_broken() -> None:
    way = Way()
    way.run(1)
    way.proof.due(way.now + 600)
    way.proof.due(way.now + 1200)
    assert way.proof.verdict.state is PathState.PROVED
