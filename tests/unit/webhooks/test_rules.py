"""What webhooks are told, where they may be, and what is kept secret."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import ipaddress
import json
import uuid

import pytest

from retinue.manager.session.core.spec import SessionSpec, WebhookSpec
from retinue.manager.session.core.states import SessionType
from retinue.manager.webhooks.core import rules
from retinue.manager.webhooks.core.rules import PUBLIC_ONLY, AddressPolicy
from retinue.manager.webhooks.seal import seal, unseal


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "::127.0.0.1",
        "::10.0.0.1",
        "fec0::1",
        "feff::1",
    ],
)
def test_inner_addresses_are_not_dialled(address: str) -> None:
    assert not PUBLIC_ONLY.permits(address)


def test_what_is_allowed_and_what_is_denied() -> None:
    assert PUBLIC_ONLY.permits("1.1.1.1")
    assert PUBLIC_ONLY.permits("2606:4700::1111")
    policy = AddressPolicy(
        (ipaddress.ip_network("10.0.0.0/8"),), (ipaddress.ip_network("10.9.0.0/16"), ipaddress.ip_network("1.1.1.0/24"))
    )
    assert policy.permits("10.1.2.3")
    assert policy.permits("::ffff:10.1.2.3")
    assert not policy.permits("10.9.1.1")
    assert not policy.permits("1.1.1.1")
    assert not policy.permits("192.168.1.1")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://x/",
        "http://",
        "http://a b/",
        "http://u:p@x/",
        "http://x:0/",
        "http://x:99999/",
        "http://x/\r\nA: b",
        "file:///etc/passwd",
        "http://x/" + "a" * 2048,
        "http://ä/",
        "x",
    ],
)
def test_wrong_urls(url: str) -> None:
    assert rules.wrong_url(url)


def test_who_is_told_of_what() -> None:
    over = rules.events_of("SESSION_MOVED", {"to": "TERMINATED", "result": "FAILURE"})
    ending = rules.events_of("SESSION_MOVED", {"to": "TERMINATING", "result": "FAILURE"})
    assert rules.events_of("KERNEL_MOVED", {}) == rules.events_of("NOTED", {}) == ()
    assert rules.wanted((), over) == "TERMINATED"
    assert rules.wanted(("SUCCEEDED",), over) == ""
    assert rules.wanted(("FAILED", "TERMINATED"), over) == "FAILED"
    assert rules.wanted(("FAILED",), ending) == "", "the result is told at the end, once"
    assert rules.wanted(("CREATED",), rules.events_of("CREATED", {})) == "CREATED"


def test_a_warning_is_told_once() -> None:
    conditions = [
        {"type": "AGENT_LOST", "message": "gone"},
        {"type": "INTERACTION_WARNING", "message": "unused"},
        {"type": "LIFETIME_WARNING", "message": "old"},
    ]
    warned = {"new": ["LIFETIME_WARNING", "AGENT_LOST"], "conditions": conditions, "reason": "", "message": ""}
    assert rules.events_of("NOTED", warned) == ("IDLE_WARNING",)
    assert rules.events_of("NOTED", {**warned, "new": ["AGENT_LOST"]}) == (), "it was there before"
    assert rules.wanted((), ("IDLE_WARNING",)) == "", "who asks for nothing is told of the end only"
    entry = rules.SessionEntry(
        revision=7,
        create_time=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        session_id=uuid.UUID(int=1),
        name="n",
        owner="o",
        project="p",
        kind="NOTED",
        payload=warned,
    )
    told = json.loads(rules.body_of("IDLE_WARNING", entry))["session"]
    assert (told["state"], told["reason"], told["message"]) == ("RUNNING", "LIFETIME_WARNING", "old")


def test_the_body_is_signed() -> None:
    entry = rules.SessionEntry(
        revision=7,
        create_time=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        session_id=uuid.UUID(int=1),
        name="n",
        owner="o",
        project="p",
        kind="SESSION_MOVED",
        payload={"to": "TERMINATED", "result": "SUCCESS", "exit_code": 0, "reason": "COMMAND_ENDED", "message": ""},
    )
    body = rules.body_of("SUCCEEDED", entry)
    told = json.loads(body)
    assert (told["event"], told["revision"], told["session"]["exitCode"], told["session"]["result"]) == (
        "SUCCEEDED",
        7,
        0,
        "SUCCESS",
    )
    headers = rules.headers_of("7-0", "SUCCEEDED", body, "key", 100)
    expected = hmac.new(b"key", f"100.{body}".encode(), hashlib.sha256).hexdigest()
    assert headers["Retinue-Signature"] == f"v1={expected}"
    assert headers["Idempotency-Key"] == "7-0"
    assert "Retinue-Signature" not in rules.headers_of("7-0", "SUCCEEDED", body, "", 100)


def test_pauses_grow_and_end() -> None:
    assert [rules.pause(tries) for tries in (1, 2, 3, 20)] == [1.0, 2.0, 4.0, 3600.0]
    assert rules.pause(rules.MAX_TRIES) is None


def test_secrets_are_in_no_row_and_no_text() -> None:
    webhook = WebhookSpec("http://x/", (), "s3cret")
    spec = SessionSpec("n", "p", "g", SessionType.BATCH, webhooks=(webhook,))
    assert "s3cret" not in json.dumps(spec.to_json()) + repr(spec)
    sealed = seal("s3cret")
    assert b"s3cret" not in sealed
    assert seal("s3cret") != sealed
    assert (unseal(sealed), unseal(seal(""))) == ("s3cret", "")
    with pytest.raises(ValueError, match="another key"):
        unseal(bytes(sealed[:-1]) + bytes([sealed[-1] ^ 1]))
