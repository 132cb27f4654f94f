"""Who gets a certificate in place of one that has expired, and who does not."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from retinue.manager.identity.authority import Authority, certificate_fingerprint
from retinue.manager.identity.principal import Kind
from retinue.manager.identity.recovery import CHALLENGE_LIFETIME, Recoveries, Recovery, Registration
from retinue.rpc.enrollment import recovery as proofs
from retinue.rpc.enrollment.identity import KeyRequest, new_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
MONTH = dt.timedelta(days=30)
GENERATION = 7


def fingerprint(certificate: str) -> str:
    return certificate_fingerprint(certificate.encode())


@dataclass
class Clock:
    now: dt.datetime

    def __call__(self) -> dt.datetime:
        return self.now


class Node:
    """A node with a certificate of a generation."""

    def __init__(
        self, authority: Authority, node_id: str, kind: Kind = Kind.AGENT, generation: int = GENERATION
    ) -> None:
        self.kind, self.node_id = kind, node_id
        self.key: KeyRequest = new_key(node_id)
        issued = authority.issue_node(kind, node_id, generation, self.key.certificate_request)
        self.certificate = issued.certificate.decode()

    def registered(self) -> Registration:
        return Registration(GENERATION, fingerprint(self.certificate), "")

    def ask(self, challenge: bytes) -> Recovery:
        request = new_key(self.node_id).certificate_request
        proof = proofs.sign(self.key.private_key, challenge, request)
        return Recovery(self.kind, self.node_id, self.certificate, challenge, proof, request)


class World:
    """An authority, and nodes whose certificates ended long ago."""

    def __init__(self, directory: Path) -> None:
        self.clock = Clock(NOW - MONTH)
        self.authority = Authority.load(directory, self.clock)
        self.node, self.other = Node(self.authority, "n1"), Node(self.authority, "n2")
        self.older = Node(self.authority, "n1")
        self.earlier = Node(self.authority, "n1", generation=GENERATION - 1)
        self.router = Node(self.authority, "n1", Kind.ROUTER)
        self.clock.now = NOW
        self.recoveries = Recoveries(self.authority, self.clock)

    def challenge(self, registration: Registration | None = None) -> bytes:
        return self.recoveries.challenge(Kind.AGENT, "n1", registration or self.node.registered())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_newest_certificate_is_recovered(world: World) -> None:
    registration = world.node.registered()
    recovery = world.node.ask(world.challenge())
    assert world.recoveries.generation(recovery, registration) == GENERATION


def test_the_one_that_asked_for_the_newest_is_recovered_as_its_answer_may_be_lost(world: World) -> None:
    registration = Registration(GENERATION, fingerprint(world.older.certificate), fingerprint(world.node.certificate))
    recovery = world.node.ask(world.challenge(registration))
    assert world.recoveries.generation(recovery, registration) == GENERATION


def test_a_database_of_an_earlier_time_takes_what_the_authority_signed(world: World) -> None:
    registration = Registration(GENERATION, "", "")
    recovery = world.node.ask(world.challenge(registration))
    assert world.recoveries.generation(recovery, registration) == GENERATION
    later = Registration(GENERATION + 1, "", "")
    assert world.recoveries.generation(world.node.ask(world.challenge(later)), later) is None


def _other_key(world: World, challenge: bytes) -> Recovery:
    asked = world.node.ask(challenge)
    return replace(asked, proof=proofs.sign(world.other.key.private_key, challenge, asked.certificate_request))


def _swapped_request(world: World, challenge: bytes) -> Recovery:
    return replace(world.node.ask(challenge), certificate_request=new_key("n1").certificate_request)


def _signed_for_another_challenge(world: World, challenge: bytes) -> Recovery:
    return replace(world.node.ask(world.challenge(Registration(GENERATION, "x", ""))), challenge=challenge)


def _made_up_challenge(world: World, challenge: bytes) -> Recovery:
    return world.node.ask(challenge[:8] + bytes(32))


def _later_end(world: World, challenge: bytes) -> Recovery:
    return world.node.ask((int.from_bytes(challenge[:8]) + 3600).to_bytes(8) + challenge[8:])


HOSTILE: dict[str, Callable[[World, bytes], Recovery]] = {
    "another node's certificate and key": lambda world, challenge: replace(world.other.ask(challenge), node_id="n1"),
    "another node's certificate for itself": lambda world, challenge: world.other.ask(challenge),
    "the right certificate without its key": _other_key,
    "a request that the proof is not about": _swapped_request,
    "an older certificate of the same enrolment": lambda world, challenge: world.older.ask(challenge),
    "a certificate of a former enrolment": lambda world, challenge: world.earlier.ask(challenge),
    "a router of the same id": lambda world, challenge: world.router.ask(challenge),
    "a router's certificate for an agent": lambda world, challenge: replace(
        world.router.ask(challenge), kind=Kind.AGENT
    ),
    "a proof for another challenge": _signed_for_another_challenge,
    "a challenge that nobody made": _made_up_challenge,
    "a challenge that was made to last longer": _later_end,
    "no challenge": lambda world, challenge: world.node.ask(b""),
    "no certificate": lambda world, challenge: replace(world.node.ask(challenge), certificate=""),
    "no proof": lambda world, challenge: replace(world.node.ask(challenge), proof=b""),
    "a certificate of the manager": lambda world, challenge: replace(
        world.node.ask(challenge), certificate=world.authority.issue_manager_client().certificate.decode()
    ),
    "the authority's own certificate": lambda world, challenge: replace(
        world.node.ask(challenge), certificate=world.authority.certificate.decode()
    ),
}


@pytest.mark.attack("recovery-of-another-node")
@pytest.mark.parametrize("attempt", HOSTILE.values(), ids=HOSTILE.keys())
def test_nobody_else_is_given_a_certificate(world: World, attempt: Callable[[World, bytes], Recovery]) -> None:
    assert world.recoveries.generation(attempt(world, world.challenge()), world.node.registered()) is None


def test_another_authority_is_not_believed(world: World, tmp_path_factory: pytest.TempPathFactory) -> None:
    foreign = Authority.load(tmp_path_factory.mktemp("foreign"), world.clock)
    impostor = Node(foreign, "n1")
    for registration in (Registration(GENERATION, "", ""), impostor.registered()):
        recovery = impostor.ask(world.challenge(registration))
        assert world.recoveries.generation(recovery, registration) is None


def test_a_node_that_is_not_enrolled_gets_a_challenge_and_nothing_for_it(world: World) -> None:
    challenge = world.recoveries.challenge(Kind.AGENT, "n1", None)
    assert len(challenge) == len(world.challenge())
    assert world.recoveries.generation(world.node.ask(challenge), None) is None


@pytest.mark.attack("recovery-of-another-node")
def test_a_challenge_ends_and_counts_once(world: World) -> None:
    challenge = world.challenge()
    recovery, registration = world.node.ask(challenge), world.node.registered()
    world.clock.now = NOW + CHALLENGE_LIFETIME
    assert world.recoveries.generation(recovery, registration) is None
    world.clock.now = NOW
    assert world.recoveries.generation(recovery, registration) == GENERATION
    # As it is after the answer: the same message again gets nothing, though the node may still have to ask again.
    after = Registration(GENERATION, "f" * 64, fingerprint(world.node.certificate))
    assert world.recoveries.generation(recovery, after) is None
    assert world.recoveries.generation(world.node.ask(world.challenge(after)), after) == GENERATION
